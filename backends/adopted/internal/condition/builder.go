package condition

import (
	"math/bits"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
)

// Builder writes conditions and values with arguments, for one statement.
type Builder struct {
	*Table
	Args []any
}

// Arg adds an argument and returns its number.
func (b *Builder) Arg(value any) int {
	b.Args = append(b.Args, value)
	return len(b.Args)
}

// textArg adds a text as an argument for the column.
func (b *Builder) textArg(c backends.Column, text string) int {
	if c.Kind == backends.BytesColumn {
		return b.Arg([]byte(text))
	}
	return b.Arg(text)
}

// Value is a text as a value of the column.
func (b *Builder) Value(c backends.Column, text string) string {
	return b.Dialect.Arg(b.textArg(c, text), c)
}

// ExactValue is Value where the server refuses a text that the column cannot hold exactly.
func (b *Builder) ExactValue(c backends.Column, text string) string {
	return b.Dialect.ExactArg(b.textArg(c, text), c)
}

// Equals is the condition that the column has this text.
func (b *Builder) Equals(c backends.Column, text string) string {
	return b.Dialect.Equals(b.textArg(c, text), c)
}

// Row is the condition for the row of a job.
func (b *Builder) Row(item string) string {
	texts := b.keyTexts(item)
	if texts == nil {
		return "1 = 0"
	}
	all := make([]string, len(texts))
	for i, text := range texts {
		all[i] = b.Equals(b.Key[i], text)
	}
	return query.And(all...)
}

// Rows is the condition for the rows of at most MaxItems jobs.
func (b *Builder) Rows(items []string) string {
	items = slices.DeleteFunc(slices.Clone(items), func(item string) bool { return b.keyTexts(item) == nil })
	if len(items) == 0 {
		return "1 = 0"
	}
	if len(b.Key) == 1 {
		return b.Dialect.AnyOf(b.Arg(items), b.Key[0])
	}
	if d, ok := b.Dialect.(backends.RowsDialect); ok && len(items) > 1 {
		first := len(b.Args) + 1
		items = padded(items)
		for _, item := range items {
			for i, text := range b.keyTexts(item) {
				b.textArg(b.Key[i], text)
			}
		}
		return d.AnyRow(b.Key, first, len(items))
	}
	all := make([]string, 0, len(items))
	for _, item := range padded(items) {
		all = append(all, "("+b.Row(item)+")")
	}
	return "(" + strings.Join(all, " OR ") + ")"
}

// After is the condition for the rows after a job's, in the order of their keys. It is true of all rows if the server's
// order of the key's texts can be another one.
func (b *Builder) After(item string) string {
	texts := b.keyTexts(item)
	if texts == nil || slices.ContainsFunc(b.Key, func(c backends.Column) bool { return c.Values != nil }) {
		return "1 = 1"
	}
	return b.beyond(b.Key, texts, ">", ">")
}

// padded repeats the last of the texts up to a power of two, so that the server sees few
// different statements.
func padded(texts []string) []string {
	last := texts[len(texts)-1]
	return append(texts, slices.Repeat([]string{last}, 1<<bits.Len(uint(len(texts)-1))-len(texts))...)
}

// Cases are the WHENs of a CASE with a branch for each text; items are the rows that have it.
func (b *Builder) Cases(texts []string, items map[string][]string, then func(text string) string) string {
	var cases strings.Builder
	for _, text := range padded(texts) {
		cases.WriteString(" WHEN " + b.Rows(items[text]))
		cases.WriteString(" THEN " + then(text))
	}
	return cases.String()
}

// WhileRows is the condition for those of the rows that meet the others. Only the rows' key finds them: by an index of
// the others the server would lock rows of other workers, and wait for them.
func WhileRows(rows string, others []string) string {
	if len(others) == 0 {
		return rows
	}
	return query.And(rows, "CASE WHEN "+query.And(others...)+" THEN 1 ELSE 0 END = 1")
}

// ShowsClaim is the condition for the row of the lease's job while it shows the claim.
func (b *Builder) ShowsClaim(l *lease.Lease) string { return WhileRows(b.Row(l.Item), b.Claim(l)) }

// Claim are the conditions that a row shows the claim: what the claim wrote, and nothing else. The queue's where can
// change with a claim. If the claim is an open transaction, the lock on the row is the proof.
func (b *Builder) Claim(l *lease.Lease) []string {
	if l.InTx {
		return nil
	}
	all := b.Claimed()
	for _, role := range b.ClaimRoles() {
		if text, shown := l.Shown[role]; shown {
			c, _ := b.Column(role)
			all = append(all, b.Equals(c, text))
		}
	}
	return all
}

// ForItems makes as many statements as it takes for the rows of these jobs.
func (t *Table) ForItems(items []string, f func(b *Builder, where string) *backends.Statement) (all []*backends.Statement) {
	for some := range slices.Chunk(items, t.MaxItems()) {
		b := &Builder{Table: t}
		all = append(all, f(b, b.Rows(some)))
	}
	return all
}

// ReadItems reads the rows of a query for KeyTexts.
func (t *Table) ReadItems(f func(item string)) func(cells [][]byte) error {
	return func(cells [][]byte) error {
		f(t.Item(cells))
		return nil
	}
}
