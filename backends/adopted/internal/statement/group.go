package statement

import (
	"errors"
	"fmt"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// Group runs changes in one statement that differ in their rows alone.
type Group struct {
	changes   []*Change
	Statement *backends.Statement
}

// ErrNotAllRows means that some rows of a group did not show their claims, and that it is unknown
// which. Nothing was written. The changes have to run one by one.
var ErrNotAllRows = backends.Refused(errors.New("not all rows show the claims that are settled"))

// GroupChanges groups the changes of which several can run in one statement, and marks them.
func GroupChanges(changes []*Change) (all []*Group) {
	open := map[string]*Group{}
	for _, c := range changes {
		if c.write == nil || c.write.empty() {
			continue
		}
		key := fmt.Sprintf("%s\x00%v\x00%#v", c.queue.Queue, *c.write, c.args)
		g := open[key]
		if g == nil || len(g.changes) == min(lease.MaxRows, c.queue.MaxItems()) {
			g = &Group{}
			open[key], all = g, append(all, g)
		}
		g.changes = append(g.changes, c)
	}
	all = slices.DeleteFunc(all, func(g *Group) bool { return len(g.changes) == 1 })
	for _, g := range all {
		for _, c := range g.changes {
			c.Grouped = true
		}
		g.Statement = g.statement()
	}
	return all
}

// statement changes the rows that show their claims.
func (g *Group) statement() *backends.Statement {
	first := g.changes[0]
	b := &condition.Builder{Table: first.queue.Table, Args: slices.Clone(first.args)}
	items := make([]string, len(g.changes))
	claims := make([]*lease.Lease, len(g.changes))
	for i, c := range g.changes {
		items[i], claims[i] = c.claim.Item, c.claim
	}
	rows, all := b.Rows(items), b.Claimed()
	for _, role := range b.ClaimRoles() {
		if shows := showsClaims(b, role, claims); shows != "" {
			all = append(all, shows)
		}
	}
	return &backends.Statement{Text: first.queue.byKey(*first.write, condition.WhileRows(rows, all)), Args: b.Args}
}

// showsClaims is the condition that each row shows in the role what its claim wrote there; empty:
// none wrote anything, because the mapping did not have the role then.
func showsClaims(b *condition.Builder, role mapping.Role, claims []*lease.Lease) string {
	c, _ := b.Column(role)
	texts, items := groupByShown(role, claims)
	switch {
	case len(texts) == 0:
		return ""
	case len(texts) == 1 && len(items[texts[0]]) == len(claims):
		return b.Equals(c, texts[0])
	}
	return "CASE" + b.Cases(texts, items, func(text string) string { return "CASE WHEN " + b.Equals(c, text) + " THEN 1 ELSE 0 END" }) + " ELSE 1 END = 1"
}

// Done notes that the changes happened, after Statement ran.
func (g *Group) Done() error {
	if g.Statement.Matched != int64(len(g.changes)) {
		return ErrNotAllRows
	}
	for _, c := range g.changes {
		c.Statement.Matched = 1
	}
	return nil
}
