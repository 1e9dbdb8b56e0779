package adopted

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
)

// changes collects changes of adopted rows and of leases. flush runs them in one round trip.
type changes struct {
	dialect backends.Dialect
	rows    []*statement.Change
	saved   []*lease.Lease
	removed []*lease.Lease
	alone   bool // each change of a row is a statement of its own
}

// leases are leases by their ids.
type leases map[int64]*lease.Lease

// query reads leases into m.
func (m leases) query(text string, args ...any) *backends.Statement {
	return &backends.Statement{Text: text, Args: args, Row: func(cells [][]byte) error {
		l, err := lease.Read(cells)
		if err == nil {
			m[l.ID] = l
		}
		return err
	}}
}

// sorted are the leases in the order of their ids.
func (m leases) sorted() (all []*lease.Lease) {
	for _, id := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[id])
	}
	return all
}

// provedBy finds the claim that a lease proves; nil: it is lost.
func (m leases) provedBy(p backends.Lease, owner backends.Identity) *lease.Lease {
	id, ok := lease.ParseHandle(p.Job)
	if l := m[id]; ok && l != nil && l.ProvedBy(p, owner) {
		return l
	}
	return nil
}

// lockLeases locks and reads the leases of the ids.
func lockLeases(ctx context.Context, sql backends.SQL, d backends.Dialect, ids []int64) (leases, error) {
	m := make(leases, len(ids))
	if len(ids) == 0 {
		return m, nil
	}
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = fmt.Sprint(id)
	}
	return m, sql.Do(ctx, m.query(lease.SelectLocked(d, lease.ByID, d.AnyOf(1, lease.IDColumn), "id", false), texts))
}

// ack adds an ack.
func (c *changes) ack(q *statement.Queue, l *lease.Lease, result []byte) (*statement.Change, error) {
	change, err := q.Ack(l, result)
	if err == nil {
		c.rows, c.removed = append(c.rows, change), append(c.removed, l)
	}
	return change, err
}

// add adds a change whose lease is kept. err is the error of making it.
func (c *changes) add(change *statement.Change, err error) (*statement.Change, error) {
	if err == nil {
		c.rows, c.saved = append(c.rows, change), append(c.saved, change.Lease)
	}
	return change, err
}

// claim adds claims.
func (c *changes) claim(q *statement.Queue, all []*lease.Lease) {
	c.rows, c.saved = append(c.rows, q.Claim(all)...), append(c.saved, all...)
}

// flush runs what was collected. A change that matched no row afterwards was no longer ours:
// its lease is removed.
func (c *changes) flush(ctx context.Context, sql backends.SQL) error {
	var groups []*statement.Group
	if !c.alone {
		groups = statement.GroupChanges(c.rows)
	}
	var all []*backends.Statement
	for _, change := range c.rows {
		if !change.Grouped {
			all = append(append(all, change.Before...), change.Statement)
		}
	}
	for _, g := range groups {
		all = append(all, g.Statement)
	}
	saves, err := lease.Save(c.dialect, c.saved)
	if err != nil {
		return err
	}
	all = append(all, saves...)
	if len(c.removed) > 0 {
		all = append(all, lease.DeleteAll(c.dialect, c.removed))
	}
	if err := do(ctx, sql, all); err != nil {
		return err
	}
	for _, g := range groups {
		if err := g.Done(); err != nil {
			return err
		}
	}
	all = nil
	for _, change := range c.rows {
		if change.Statement.Matched == 0 {
			all = append(all, change.Lease.Delete(c.dialect))
		}
	}
	return do(ctx, sql, all)
}

// do runs the statements, if there are any.
func do(ctx context.Context, sql backends.SQL, all []*backends.Statement) error {
	if len(all) == 0 {
		return nil
	}
	return sql.Do(ctx, all...)
}

// madeReady are the queues of the jobs that became ready, after flush.
func (c *changes) madeReady() (queues []string) {
	for _, change := range c.rows {
		if change.MadeReady && change.Statement.Matched > 0 {
			addQueues(&queues, change.Lease.Queue)
		}
	}
	return queues
}

// matched is the number of rows that the statements matched.
func matched(all []*backends.Statement) (n int64) {
	for _, st := range all {
		n += st.Matched
	}
	return n
}
