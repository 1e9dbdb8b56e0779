package condition

import (
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// OrderColumn is a column of the order of claims.
type OrderColumn struct {
	backends.Column
	Descending bool
}

// Start is where a scan for jobs to claim starts.
type Start struct {
	At  []string // the texts of the columns of StartOrder in the first row
	Run int      // the first column of the run that the scan is about; see Runs
}

// StartOrder are the columns by whose values a scan can start at a row. nil: it can't, or it needn't, because the row of
// a job that waits for its back-off, and that of a dead one, shows when it can be claimed. With ClaimInTx, rows become ready
// again in too many ways that the Store doesn't see.
func (t *Table) StartOrder() (all []OrderColumn) {
	if t.ClaimInTx || t.Has(mapping.RunAt) && t.HasState(backends.StateDead) {
		return nil
	}
	kinds := []backends.ColumnKind{backends.TextColumn, backends.NumberColumn, backends.BoolColumn, backends.TimeColumn, backends.UUIDColumn}
	for _, o := range t.waitingOrder() {
		c, _ := t.Info.Column(o.Name)
		if !slices.Contains(kinds, c.Kind) || c.Values != nil { // a server can compare listed values in another order
			return nil
		}
		all = append(all, OrderColumn{c, o.Descending})
	}
	return all
}

// Runs are the numbers of the columns at which the direction of the order changes, the last one first, and the first
// column. Each run of columns has a range of the rows from a start on, in the order of the rows.
func Runs(order []OrderColumn) (all []int) {
	for i, c := range order {
		if i == 0 || c.Descending != order[i-1].Descending {
			all = append(all, i)
		}
	}
	slices.Reverse(all)
	return all
}

// From is the condition for the rows of the start's run. The last run has the row itself and those after it. Another run has
// the rows that follow the last row with the same values in the columns of the run. A row is missing if NULL decides the
// comparison.
func (b *Builder) From(order []OrderColumn, s Start, rowValues bool) string {
	var all []string
	for i, c := range order[:s.Run] {
		all = append(all, b.Quote(c.Column)+" = "+b.ExactValue(c.Column, s.At[i]))
	}
	var run []backends.Column
	for _, c := range order[s.Run:] {
		if c.Descending != order[s.Run].Descending {
			break
		}
		run = append(run, c.Column)
	}
	operator := ">"
	if order[s.Run].Descending {
		operator = "<"
	}
	last, texts := operator, s.At[s.Run:s.Run+len(run)]
	if s.Run+len(run) == len(order) {
		last += "="
	}
	if !rowValues || len(run) == 1 {
		return query.And(append(all, b.beyond(run, texts, operator, last))...)
	}
	names, values := make([]string, len(run)), make([]string, len(run))
	for i, c := range run {
		names[i], values[i] = b.Quote(c), b.ExactValue(c, texts[i])
	}
	return query.And(append(all, "("+strings.Join(names, ", ")+") "+last+" ("+strings.Join(values, ", ")+")")...)
}

// beyond is the condition for the rows beyond one with these texts in the columns. operator is > or <, or for the last
// column another one, as last.
func (b *Builder) beyond(columns []backends.Column, texts []string, operator, last string) string {
	var beyond string
	for i, c := range slices.Backward(columns) {
		if beyond == "" {
			beyond = b.Quote(c) + " " + last + " " + b.ExactValue(c, texts[i])
			continue
		}
		beyond = "(" + b.Quote(c) + " " + operator + " " + b.ExactValue(c, texts[i]) + " OR " + b.Quote(c) + " = " + b.ExactValue(c, texts[i]) + " AND " + beyond + ")"
	}
	if len(columns) > 1 { // so that an index of the columns serves
		beyond = b.Quote(columns[0]) + " " + operator + "= " + b.ExactValue(columns[0], texts[0]) + " AND " + beyond
	}
	return beyond
}
