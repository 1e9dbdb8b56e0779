package adopted

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Maintain implements backends.Backend: the engine's maintenance, and the same for adopted queues. Each part runs
// whatever becomes of the others, unless the database is unavailable.
func (s *Store) Maintain(ctx context.Context, m backends.Maintenance) (backends.MaintenanceResult, error) {
	var waiting []string
	m.Waiting = slices.DeleteFunc(slices.Clone(m.Waiting), func(queue string) bool {
		if s.Adopted(queue) {
			waiting = append(waiting, queue)
		}
		return s.Adopted(queue)
	})
	m.AdoptedSchedules = len(s.tables) > 0 // the watchers possibly don't have these tables
	r, err := s.Engine.Maintain(ctx, m)
	if err != nil && core.IsOutage(ctx, err) {
		return r, err
	}
	errs := []error{err}
	s.ObstacleSet().Keep(func(o *backends.Obstacle) bool {
		return o.Table == "" || o.Queue == "" || s.Adopted(o.Queue) || s.settledIn(o.Queue) != nil
	})
	next := s.reapInTx(ctx, &r, m.Jitter)
	var due dueWork
	for _, part := range []func() error{
		func() (err error) {
			if due, err = s.findDue(ctx, waiting); isLocked(err) { // the table of the leases, or of the sidecars
				s.FindLockedTables(ctx)
				due, err = s.findDue(ctx, waiting)
			}
			return err
		},
		func() error { return s.reap(ctx, &r, m, due) },
		func() error {
			if s.leasesLocked() {
				return nil
			}
			return s.reapSlow(&r, m)
		},
		func() error { return s.resetStuck(ctx, &r, m.Limit) },
		func() error { return s.pruneAll(ctx, &r, m) },
	} {
		err := part()
		if errs = append(errs, err); err != nil && core.IsOutage(ctx, err) {
			break
		}
	}
	addQueues(&due.ready, s.recheck(ctx)...)
	r.Ready = append(r.Ready, due.ready...)
	for _, next := range []time.Duration{due.next, next} {
		if next >= 0 && (r.Next < 0 || next < r.Next) {
			r.Next = next
		}
	}
	addQueues(&r.MadeReady, s.tx.connectable()...)
	return r, errors.Join(errs...)
}

// pruneAll deletes old leases and rows, if it is time to.
func (s *Store) pruneAll(ctx context.Context, r *backends.MaintenanceResult, m backends.Maintenance) error {
	if !m.Prune {
		return nil
	}
	if s.leasesLocked() {
		return s.prune(ctx, r, m.PruneLimit())
	}
	if err := s.pruneLeases(ctx, r, m.PruneLimit()); err != nil {
		if core.IsOutage(ctx, err) {
			return err
		}
		return errors.Join(err, s.prune(ctx, r, m.PruneLimit()))
	}
	return s.prune(ctx, r, m.PruneLimit())
}

// leasesLocked reports whether another session has locked a table that the search for ended claims needs.
func (s *Store) leasesLocked() bool {
	return s.LockedTables().Of(backends.OwnLeases|backends.OwnSidecars) != nil
}

// dueWork is what maintenance has to do.
type dueWork struct {
	due, lost bool          // claims that are due, and claims of lost sidecars
	next      time.Duration // until a claim is due; < 0: none will be
	ready     []string      // queues with jobs to claim
}

// ofQueues is the condition for leases of the queues in argument n.
func (s *Store) ofQueues(n int) string { return s.dialect.AnyOf(n, lease.QueueColumn) }

// findDue finds out in one round trip what there is to do. Claims that the database refused to take back don't make
// maintenance hurry.
func (s *Store) findDue(ctx context.Context, waiting []string) (w dueWork, err error) {
	if w.next = -1; s.leasesLocked() {
		return w, nil
	}
	d := s.dialect
	from := " FROM " + lease.From(d) + " WHERE " + s.ofQueues(1)
	statements := []*backends.Statement{{
		Text: "SELECT " + query.Columns(d.ToText("min(l.due_at) - "+d.NowMillis())) + from + " AND l.due_at IS NOT NULL",
		Args: []any{s.promptNames()},
		Row: func(cells [][]byte) error {
			if cells[0] == nil {
				return nil
			}
			var left int64
			err := query.Int(cells[0], &left)
			if w.due = left <= 0; !w.due || s.ObstacleSet().Jobs(backends.DoingGiveBack) == 0 {
				w.next = max(core.FromMS(left), 0)
			}
			return err
		},
	}, {
		Text: "SELECT " + query.Columns(d.ToText("count(*)")) + from + " AND " + lease.OfLost(s.dialect),
		Args: []any{s.promptNames()},
		Row: func(cells [][]byte) error {
			w.lost = string(cells[0]) != "0"
			return nil
		},
	}}
	sample, found := s.held.find(nil, heldSample), map[int64]bool{}
	if len(sample) > 0 {
		statements = append(statements, s.findHeld(sample, heldSample, found))
	}
	own := len(statements)
	defer func() {
		if err == nil {
			err = s.restoreHeld(ctx, sample, found)
		}
	}()
	waiting = slices.DeleteFunc(waiting, func(name string) bool {
		slow := s.Slow(name)
		if slow { // its claims find out
			addQueues(&w.ready, name)
		}
		return slow || s.isObstructed(name, backends.DoingClaim) || s.lockedOut(name) != nil
	})
	for _, name := range waiting {
		statements = append(statements, s.queues()[name].Exists(func() { addQueues(&w.ready, name) }))
	}
	err = s.limited(ctx, false, func(ctx context.Context) error { return s.Query(ctx, statements...) })
	if err == nil || len(waiting) == 0 || core.IsOutage(ctx, err) {
		return w, err
	}
	// A table is possibly gone, has changed, or is slow: the others are asked without it.
	if err := s.Query(ctx, statements[:own]...); err != nil {
		return w, err
	}
	for i, name := range waiting {
		err := s.limited(ctx, false, func(ctx context.Context) error { return s.Query(ctx, statements[own+i]) })
		switch {
		case errors.Is(err, errSlow):
			s.noteSlow(name)
			addQueues(&w.ready, name)
		case err != nil && core.IsOutage(ctx, err):
			return w, err
		case err != nil:
			_ = s.obstruct(ctx, name, backends.DoingClaim, err)
		}
	}
	return w, nil
}

// refused notes an obstacle of a queue, or of one of its jobs.
func (s *Store) refused(q *statement.Queue, item, doing string, err error) {
	s.ObstacleSet().Note(backends.Obstacle{Queue: q.Queue, Table: q.Info.Name, Job: item, Doing: doing, Err: err})
}

// reaping is a query for claims to take back, and why.
type reaping struct {
	where, order string
	index        string // of the leases, that a HintDialect names; empty: none has that order
	cause        func(*lease.Lease) backends.Cause
}

// query locks up to n (argument 1) of the leases of the queues in argument 2, and skips those that others have locked.
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
	return reaping{lease.OfLost(s.dialect), "l.id", "", func(*lease.Lease) backends.Cause { return backends.CauseSidecarLost }}
}

// reap takes back a batch of the claims that are due, and one of those of lost sidecars.
func (s *Store) reap(ctx context.Context, r *backends.MaintenanceResult, m backends.Maintenance, due dueWork) error {
	began := s.ObstacleSet().Time()
	complete := true
	here := map[[2]string]bool{} // by queue and item
	var errs error
	for _, part := range []struct {
		some bool
		what reaping
	}{{due.due, s.dueLeases()}, {due.lost, s.lostLeases()}} {
		if !part.some {
			continue
		}
		seen, all, err := s.reapBatch(ctx, r, m, part.what, s.promptNames(), false)
		if err != nil && core.IsOutage(ctx, err) {
			return err
		}
		complete, errs = complete && all && err == nil, errors.Join(errs, err)
		for _, l := range seen {
			here[[2]string{l.Queue, l.Item}] = true
		}
	}
	if complete { // what was not found any more was settled, or taken back by another sidecar
		s.ObstacleSet().Tried(began, func(o *backends.Obstacle) bool {
			return o.Doing == backends.DoingGiveBack && o.Table != "" && !s.Slow(o.Queue) && !here[[2]string{o.Queue, o.Job}]
		})
	}
	return errs
}

// reapBatch takes a batch of claims back. It leaves those alone that are being settled, those whose rows other programs
// have locked, and those that the database refuses: one of these must not keep the others from being taken back. It
// returns the claims that it found, and whether these are all. If it isn't alone, it ends when a queue turns out to be slow.
func (s *Store) reapBatch(ctx context.Context, r *backends.MaintenanceResult, m backends.Maintenance, what reaping, queues []string, alone bool) (seen []*lease.Lease, all bool, _ error) {
	set := s.ObstacleSet()
	began := set.Time()
	_, refusing := set.Waiting(backends.DoingGiveBack)
	queues = slices.DeleteFunc(slices.Clone(queues), func(queue string) bool { return slices.Contains(refusing, queue) })
	most := m.Limit + set.Jobs(backends.DoingGiveBack)
	apart := core.Apart[*lease.Lease]{
		Set: set,
		Obstacle: func(l *lease.Lease) backends.Obstacle {
			return backends.Obstacle{Queue: l.Queue, Table: s.settledIn(l.Queue).Info.Name, Job: l.Item, Doing: backends.DoingGiveBack}
		},
	}
	apart.Try = func(some []*lease.Lease) error {
		ids := map[int64]bool{}
		for _, l := range some {
			ids[l.ID] = true
		}
		return s.reapSome(ctx, r, m.Jitter, most, queues, what, alone, func(all []*lease.Lease) []*lease.Lease {
			return slices.DeleteFunc(all, func(l *lease.Lease) bool { return !ids[l.ID] })
		})
	}
	err := s.reapSome(ctx, r, m.Jitter, most, queues, what, alone, func(all []*lease.Lease) []*lease.Lease {
		seen = slices.Clone(all)
		return apart.New(all)
	})
	if errors.Is(err, errSlow) {
		return s.reapEach(ctx, r, m, what, seen)
	}
	fresh := len(apart.New(seen))
	more, err := apart.After(ctx, began, seen, err)
	r.More = r.More || more || err == nil && fresh >= m.Limit
	return seen, len(seen) < most && len(refusing) == 0, err
}

// reapSome takes those claims back in one transaction that choose returns, of those that it finds.
func (s *Store) reapSome(ctx context.Context, r *backends.MaintenanceResult, jitter backends.Jitter, limit int, queues []string, what reaping, alone bool, choose func([]*lease.Lease) []*lease.Lease) error {
	x := &changes{}
	if err := s.transaction(ctx, func() []string { return x.madeReady() }, func(ctx context.Context, sql backends.SQL) error {
		*x = changes{dialect: s.dialect, alone: true}
		claims := leases{}
		if err := sql.Do(ctx, claims.query(what.query(s), int64(limit), queues)); err != nil {
			return err
		}
		return s.limited(ctx, alone, func(ctx context.Context) error { return s.reapRows(ctx, sql, x, claims, what, jitter, choose) })
	}); err != nil {
		return err
	}
	for _, change := range x.rows {
		if change.Statement.Matched > 0 {
			r.Reaped[change.Cause]++
			r.Failed.Add(change.Lease.Queue, change.Cause, change.Dead)
		}
	}
	for _, change := range x.rows {
		s.held.forget(change.Lease.ID)
	}
	s.returned(x.rows)
	addQueues(&r.MadeReady, x.madeReady()...)
	return nil
}

// reapRows takes those of the claims back that choose returns.
func (s *Store) reapRows(ctx context.Context, sql backends.SQL, x *changes, claims leases, what reaping, jitter backends.Jitter, choose func([]*lease.Lease) []*lease.Lease) error {
	chosen := choose(slices.DeleteFunc(claims.sorted(), func(l *lease.Lease) bool { return s.settledIn(l.Queue) == nil }))
	rows := itemSets{}
	for _, l := range chosen {
		rows.add(s.settledIn(l.Queue), l.Item)
	}
	locked, err := lockRows(ctx, sql, rows)
	if err != nil {
		return err
	}
	for _, l := range chosen {
		q, cause := s.settledIn(l.Queue), what.cause(l)
		if locked[q][l.Item] {
			continue
		}
		if _, err := x.add(q.End(l, l.AttemptState().AfterReap(cause, jitter.Of(l.Queue)), cause)); err != nil {
			return err
		}
	}
	return x.flush(ctx, sql)
}

// resetStuck makes rows ready again that their own consumers claimed too long ago.
func (s *Store) resetStuck(ctx context.Context, r *backends.MaintenanceResult, limit int) error {
	for _, q := range s.sortedQueues() {
		if q.StuckAfter <= 0 || s.ObstacleSet().Waits(q.Queue, "", backends.DoingReset) {
			continue
		}
		if err := s.resetStuckIn(ctx, r, q, limit); err != nil {
			return err
		}
	}
	return nil
}

// resetStuckIn is resetStuck for one queue. The error means that the database is unavailable.
func (s *Store) resetStuckIn(ctx context.Context, r *backends.MaintenanceResult, q *statement.Queue, limit int) error {
	set := s.ObstacleSet()
	began := set.Time()
	limit = min(limit, q.MaxItems())
	most := limit + set.Jobs(backends.DoingReset)
	var seen []string
	apart := core.Apart[string]{
		Set: set,
		Obstacle: func(item string) backends.Obstacle {
			return backends.Obstacle{Queue: q.Queue, Table: q.Info.Name, Job: item, Doing: backends.DoingReset}
		},
	}
	apart.Try = func(some []string) error {
		return s.resetSome(ctx, r, q, most, func(items []string) []string {
			return slices.DeleteFunc(items, func(item string) bool { return !slices.Contains(some, item) })
		})
	}
	found := false
	err := s.resetSome(ctx, r, q, most, func(items []string) []string {
		seen, found = slices.Clone(items), true
		return apart.New(items)
	})
	if err != nil && !found && !core.IsOutage(ctx, err) {
		s.refused(q, "", backends.DoingReset, err)
		return nil
	}
	fresh := len(apart.New(seen))
	more, err := apart.After(ctx, began, seen, err)
	if err != nil {
		return err
	}
	if len(seen) < most {
		set.Tried(began, func(o *backends.Obstacle) bool {
			return o.Doing == backends.DoingReset && o.Queue == q.Queue && !slices.Contains(seen, o.Job)
		})
	}
	r.More = r.More || more || fresh >= limit
	return nil
}

// resetSome resets those stuck rows in one transaction that choose returns, of those that it finds.
func (s *Store) resetSome(ctx context.Context, r *backends.MaintenanceResult, q *statement.Queue, limit int, choose func([]string) []string) error {
	var ready []string
	err := s.transaction(ctx, func() []string { return ready }, func(ctx context.Context, sql backends.SQL) error {
		return s.limited(ctx, false, func(ctx context.Context) error {
			var items []string
			ready = nil
			if err := sql.Do(ctx, q.Stuck(limit, func(item string) { items = append(items, item) })); err != nil {
				return err
			}
			if items = choose(items); len(items) == 0 {
				return nil
			}
			ready = []string{q.Queue}
			return sql.Do(ctx, q.ForItems(items, func(b *condition.Builder, where string) *backends.Statement { return q.Reset(b, where, false, nil) })...)
		})
	})
	if err == nil {
		addQueues(&r.MadeReady, ready...)
	}
	return err
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
	if err != nil {
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
	_, err = s.CommitWith(ctx, backends.CommitContent{}, backends.TxHooks{Before: func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
		return sql.Do(ctx, deletes...)
	}})
	r.AddPruned(int(matched(deletes)), len(all), limit, time.Since(began)) // where some were found there can be more
	return err
}

// findUnfinished finds the jobs of the leases that exist and are not done. A job of a table that can't be read counts
// as one.
func (s *Store) findUnfinished(ctx context.Context, all []*lease.Lease) (itemSets, error) {
	items := map[string][]string{}
	for _, l := range all {
		items[l.Queue] = append(items[l.Queue], l.Item)
	}
	unfinished := itemSets{}
	for name, of := range items {
		q := s.queues()[name]
		if q == nil {
			continue // the database compares its name without case
		}
		err := s.Query(ctx, q.Unfinished(of, func(item string) { unfinished.add(q, item) })...)
		if err != nil && core.IsOutage(ctx, err) {
			return nil, err
		}
		if err != nil { // a later run tries again
			for _, item := range of {
				unfinished.add(q, item)
			}
		}
	}
	return unfinished, nil
}
