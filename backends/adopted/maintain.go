package adopted

import (
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Maintain implements backends.Backend: the engine's maintenance, and the same for adopted queues.
func (s *Store) Maintain(ctx context.Context, m backends.Maintenance) (backends.MaintenanceResult, error) {
	var waiting []string
	m.Waiting = slices.DeleteFunc(slices.Clone(m.Waiting), func(queue string) bool {
		if s.Adopted(queue) {
			waiting = append(waiting, queue)
		}
		return s.Adopted(queue)
	})
	r, err := s.Engine.Maintain(ctx, m)
	if err != nil {
		return r, err
	}
	due, err := s.findDue(ctx, waiting)
	if err != nil {
		return r, err
	}
	addQueues(&due.ready, s.recheck(ctx)...)
	r.Ready = append(r.Ready, due.ready...)
	for _, next := range []time.Duration{due.next, s.reapInTx(ctx, &r)} {
		if next >= 0 && (r.Next < 0 || next < r.Next) {
			r.Next = next
		}
	}
	addQueues(&r.MadeReady, s.tx.connectable()...)
	if due.due {
		if err := s.reap(ctx, &r, m.Limit, s.dueLeases()); err != nil {
			return r, err
		}
	}
	if due.lost {
		if err := s.reap(ctx, &r, m.Limit, s.lostLeases()); err != nil {
			return r, err
		}
	}
	if err := s.resetStuck(ctx, &r, m.Limit); err != nil || !m.Prune {
		return r, err
	}
	if err := s.pruneLeases(ctx, &r, m.PruneLimit()); err != nil {
		return r, err
	}
	return r, s.prune(ctx, &r, m.PruneLimit())
}

// dueWork is what maintenance has to do.
type dueWork struct {
	due, lost bool          // claims that are due, and claims of lost sidecars
	next      time.Duration // until a claim is due; < 0: none will be
	ready     []string      // queues with jobs to claim
}

// ofQueues is the condition for leases of the queues in argument n.
func (s *Store) ofQueues(n int) string { return s.dialect.AnyOf(n, lease.QueueColumn) }

// ofLost is the condition for session leases of sidecars that are not alive.
func (s *Store) ofLost() string {
	return "l.token_sidecar IS NOT NULL AND l.owner IS NOT NULL AND l.lease_ms IS NULL AND NOT " + s.dialect.IsAlive("l.owner")
}

// findDue finds out in one round trip what there is to do.
func (s *Store) findDue(ctx context.Context, waiting []string) (dueWork, error) {
	w := dueWork{next: -1}
	d := s.dialect
	from := " FROM " + lease.From(d) + " WHERE " + s.ofQueues(1)
	statements := []*backends.Statement{{
		Text: "SELECT " + query.Columns(d.ToText("min(l.due_at) - "+d.NowMillis())) + from + " AND l.due_at IS NOT NULL",
		Args: []any{s.settledNames()},
		Row: func(cells [][]byte) error {
			if cells[0] == nil {
				return nil
			}
			var left int64
			err := query.Int(cells[0], &left)
			w.next, w.due = max(core.FromMS(left), 0), left <= 0
			return err
		},
	}, {
		Text: "SELECT " + query.Columns(d.ToText("count(*)")) + from + " AND " + s.ofLost(),
		Args: []any{s.settledNames()},
		Row: func(cells [][]byte) error {
			w.lost = string(cells[0]) != "0"
			return nil
		},
	}}
	leases := len(statements)
	waiting = slices.DeleteFunc(waiting, func(name string) bool { return s.isObstructed(name, backends.DoingClaim) })
	for _, name := range waiting {
		statements = append(statements, s.queues()[name].Exists(func() { addQueues(&w.ready, name) }))
	}
	err := s.Query(ctx, statements...)
	if !isOfTable(err) && !backends.IsRefused(err) || len(waiting) == 0 {
		return w, err
	}
	if err := s.Query(ctx, statements[:leases]...); err != nil {
		return w, err
	}
	for i, name := range waiting {
		if err := s.Query(ctx, statements[leases+i]); isOfTable(err) || backends.IsRefused(err) {
			_ = s.obstruct(ctx, name, backends.DoingClaim, err)
		} else if err != nil {
			return w, err
		}
	}
	return w, nil
}

// reaping is a query for claims to take back, and why.
type reaping struct {
	where, order string
	index        string // of the leases, that a HintDialect names; empty: none has that order
	cause        func(*lease.Lease) backends.Cause
}

// query locks up to n (argument 1) of the leases, and skips those that others have locked.
func (r reaping) query(s *Store) string {
	columns, from, where := lease.Columns(s.dialect), lease.From(s.dialect), s.ofQueues(2)+" AND "+r.where
	if h, ok := s.dialect.(backends.HintDialect); ok && r.index != "" {
		return h.SelectClaim(columns, from, where, r.order, 1, r.index, true)
	}
	return s.dialect.SelectLocked(columns, from, where, r.order, 1, true)
}

func (s *Store) dueLeases() reaping {
	return reaping{"l.due_at IS NOT NULL AND l.due_at <= " + s.dialect.NowMillis(), "l.due_at", "qsidecar_leases_due", func(l *lease.Lease) backends.Cause {
		if l.Deadline > 0 && l.Deadline <= l.DueAt {
			return backends.CauseTimedOut
		}
		return backends.CauseLeaseEnded
	}}
}

func (s *Store) lostLeases() reaping {
	return reaping{s.ofLost(), "l.id", "", func(*lease.Lease) backends.Cause { return backends.CauseSidecarLost }}
}

// reap takes a batch of claims back. It leaves those alone that are being settled, and those whose
// rows other programs have locked: one of these must not keep the others from being taken back.
func (s *Store) reap(ctx context.Context, r *backends.MaintenanceResult, limit int, what reaping) error {
	x := &changes{}
	if err := s.transaction(ctx, func() []string { return x.madeReady() }, func(ctx context.Context, sql backends.SQL) error {
		*x = changes{dialect: s.dialect, alone: true}
		claims := leases{}
		if err := sql.Do(ctx, claims.query(what.query(s), int64(limit), s.settledNames())); err != nil {
			return err
		}
		rows := itemSets{}
		for _, l := range claims {
			rows.add(s.settledIn(l.Queue), l.Item)
		}
		locked, err := lockRows(ctx, sql, rows)
		if err != nil {
			return err
		}
		for _, l := range claims.sorted() {
			q, cause := s.settledIn(l.Queue), what.cause(l)
			if locked[q][l.Item] {
				continue
			}
			if _, err := x.add(q.End(l, l.AttemptState().AfterReap(cause), cause)); err != nil {
				return err
			}
		}
		return x.flush(ctx, sql)
	}); err != nil {
		return err
	}
	for _, change := range x.rows {
		if change.Statement.Matched > 0 {
			r.Reaped[change.Cause]++
			r.Failed.Add(change.Lease.Queue, change.Cause, change.Dead)
		}
	}
	s.returned(x.rows)
	addQueues(&r.MadeReady, x.madeReady()...)
	r.More = r.More || len(x.rows) >= limit
	return nil
}

// resetStuck makes rows ready again that their own consumers claimed too long ago.
func (s *Store) resetStuck(ctx context.Context, r *backends.MaintenanceResult, limit int) error {
	for _, q := range s.sortedQueues() {
		if q.StuckAfter <= 0 {
			continue
		}
		var items, ready []string
		if err := s.transaction(ctx, func() []string { return ready }, func(ctx context.Context, sql backends.SQL) error {
			items, ready = nil, nil
			if err := sql.Do(ctx, q.Stuck(limit, func(item string) { items = append(items, item) })); err != nil || len(items) == 0 {
				return err
			}
			ready = []string{q.Queue}
			return sql.Do(ctx, q.ForItems(items, func(b *condition.Builder, where string) *backends.Statement { return q.Reset(b, where, false) })...)
		}); err != nil {
			return err
		}
		addQueues(&r.MadeReady, ready...)
		r.More = r.More || len(items) >= min(limit, q.MaxItems())
	}
	return nil
}

// pruneLeases deletes the leases of jobs whose rows are gone, or that their own consumers finished. Each
// run checks a batch of the leases without claims, from where the last one ended.
func (s *Store) pruneLeases(ctx context.Context, r *backends.MaintenanceResult, limit int) error {
	s.pruningLeases.Lock()
	defer s.pruningLeases.Unlock()
	found := leases{}
	if err := s.Query(ctx, found.query(s.dialect.SelectFirst(lease.Columns(s.dialect), lease.From(s.dialect),
		s.ofQueues(1)+" AND l.token_sidecar IS NULL AND l.id > "+s.dialect.IntArg(2), "l.id", s.dialect.IntArg(3)), s.queueNames(), s.leaseScanPos, int64(limit))); err != nil {
		return err
	}
	all := found.sorted()
	s.leaseScanPos = 0
	if len(all) >= limit {
		s.leaseScanPos = all[len(all)-1].ID
	}
	if len(all) == 0 {
		return nil
	}
	unfinished, err := s.findUnfinished(ctx, all)
	if isLocked(err) {
		return nil // a later run tries again
	} else if err != nil {
		return err
	}
	var deletes []*backends.Statement
	for _, l := range all {
		if !unfinished[s.queues()[l.Queue]][l.Item] {
			st := l.Delete(s.dialect)
			st.Text += " AND token_sidecar IS NULL AND changed_at = " + s.dialect.IntArg(2)
			st.Args = append(st.Args, l.Changed)
			deletes = append(deletes, st)
		}
	}
	if len(deletes) == 0 {
		return nil
	}
	began := time.Now()
	_, err = s.CommitWith(ctx, backends.Batch{}, backends.TxHooks{Before: func(ctx context.Context, sql backends.SQL, _ *backends.Batch) error {
		return sql.Do(ctx, deletes...)
	}})
	r.AddPruned(int(matched(deletes)), len(all), limit, time.Since(began)) // where some were found there can be more
	return err
}

// findUnfinished finds the jobs of the leases that exist and are not done.
func (s *Store) findUnfinished(ctx context.Context, all []*lease.Lease) (itemSets, error) {
	items := map[string][]string{}
	for _, l := range all {
		items[l.Queue] = append(items[l.Queue], l.Item)
	}
	unfinished := itemSets{}
	var statements []*backends.Statement
	for name, of := range items {
		q := s.queues()[name]
		if q == nil {
			continue // the database compares its name without case
		}
		statements = append(statements, q.Unfinished(of, func(item string) { unfinished.add(q, item) })...)
	}
	return unfinished, s.Query(ctx, statements...)
}
