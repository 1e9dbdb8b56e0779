package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// DueQuery is what Driver.FindDue has to find out for maintenance.
type DueQuery struct {
	Prune  bool // also find what retention allows to delete
	Owners bool // also find claims whose owners aren't alive

	Cancelled bool // also find what NoteCancelled has stored for Sidecar, and what else is in a table of its own

	// Refused are lost owners whose claims the database refuses to end. With Due.MoreLost, others come before them.
	Refused []int64

	Sidecar backends.Identity // the sidecar that asks
	Watched bool              // see backends.Maintenance: only the work of Sidecar matters, and Owners is false

	Schedules Schedules // which schedules matter

	// Waiting are queues from which workers wait for jobs. Pieces are the pieces of them to scan.
	Waiting []string
	Pieces  []Piece // Piece.Queue is an index of Waiting

	// Where scans for pruning start; zero: from the beginning
	JobsFrom, KeysFrom time.Time

	// Where scans for jobs and claims that are due start. If it isn't zero, those that are due later than in DueWithin
	// don't matter either.
	DueFrom time.Time
}

// Schedules are which schedules a sidecar fires. In the table, adopted is less than or equal to it.
type Schedules int64

// The schedules that a sidecar fires.
const (
	NoSchedules      Schedules = -1 // the watchers fire them
	ManagedSchedules Schedules = 0
	AllSchedules     Schedules = 1 // also those of queues in adopted tables
)

// DueWithin is how far into the future Driver.FindDue has to search if DueQuery.DueFrom is set. It is longer than the
// pauses of maintenance.
const DueWithin = time.Second

// Due is the result of Driver.FindDue. Times are the database's.
type Due struct {
	At    time.Time  // when Driver.FindDue ran
	RunAt *time.Time // of the scheduled job that is due first; nil: there is none
	DueAt *time.Time // the end of the lease or time limit that ends first; nil: there is none
	Lost  []int64    // owners of claimed rows that are dead or unknown

	ExpireAt *time.Time // when the first waiting job expires; nil: none does
	Dead     bool       // there are dead sidecars
	Jobs     *time.Time // when the first finished job expired; nil: none has
	Keys     *time.Time
	Ready    []bool     // for each of Waiting: whether a job is ready
	Returns  []int64    // for each of Waiting: how often jobs returned to their old positions
	FireAt   *time.Time // when the first schedule is due; nil: there is none
	Never    int64      // the id of a scheduled job that never becomes due; 0: there is none

	Cancelled []backends.Token // what NoteCancelled has stored for DueQuery.Sidecar

	Groups   bool // there are jobs that have groups and are not finished
	Batches  bool // there are notes of batches, or batches that are closed or being cancelled, or whose time is over
	Promote  bool // there are jobs to promote, whatever RunAt is
	MoreLost bool // Lost can be incomplete

	// Details are for the engine's own Maintainer.
	Details any
}

// Tidier is a Driver with other rows to delete when maintenance prunes.
type Tidier interface {
	Tidy(ctx context.Context, limit int) error
}

// Maintain implements backends.Backend. If nothing is due, it only reads.
//
// The order: mark silent sidecars dead; call Driver.FindDue; end expired jobs; promote due jobs; reap overdue claims, then those of lost
// sidecars; forget dead sidecars that own no job; admit jobs of groups; prune; call Driver.FindDue again if anything changed. Each step is a
// transaction of its own, and runs whatever becomes of the others, unless the database is unavailable.
func (s *Store) Maintain(ctx context.Context, w backends.Maintenance) (backends.MaintenanceResult, error) {
	r := backends.MaintenanceResult{Reaped: map[backends.Cause]int{}, Next: -1}
	defer s.watchTables(ctx)()
	var errs []error
	failed := func(err error) (outage bool) {
		if backends.LockedTable(err) != "" || backends.LacksRight(err) && s.outages.someRights() { // it is an obstacle, and keeps no other step from its work
			return false
		}
		errs = append(errs, err)
		return err != nil && IsOutage(ctx, err)
	}
	if len(w.Suspects) > 0 {
		if failed(s.step(ctx, &r, 0, backends.OwnSidecars, func(ctx context.Context, tx Tx, _ *stepResult) error { return tx.MarkDead(ctx, w.Suspects) })) {
			return r, errors.Join(errs...)
		}
	}
	if len(w.Handled) > 0 {
		if failed(s.step(ctx, &r, 0, backends.OwnCancelled, func(ctx context.Context, tx Tx, _ *stepResult) error {
			tx.ForgetCancelled(w.Sidecar, w.Handled)
			return tx.Flush(ctx)
		})) {
			return r, errors.Join(errs...)
		}
	}
	o, err := s.findDue(ctx, w, true)
	if outage := failed(err); err != nil && !outage { // a table that only cancels, schedules or pruning use can be out of order
		if o, err = s.findDue(ctx, w, false); err != nil && w.Prune && (backends.LockedTable(err) != "" || !IsOutage(ctx, err)) {
			w.Prune = false
			o, err = s.findDue(ctx, w, false)
		}
		if err != nil && (len(errs) == 0 || errs[len(errs)-1] == nil || err.Error() != errs[len(errs)-1].Error()) {
			failed(err)
		}
	}
	if err != nil {
		return r, errors.Join(errs...)
	}
	r.Cancelled = o.Cancelled
	if o.Never != 0 {
		r.Unusable = fmt.Errorf("qsidecar_jobs row %d in %s: its run_at is not a time of the years 1 to 9999, so the job never becomes ready: set another run_at, or delete it", o.Never, s.address)
	}
	changed, err := s.runSteps(ctx, w, o, &r, failed)
	if err != nil {
		return r, errors.Join(errs...)
	}
	if ((o.Groups || changed) && !w.Watched || s.notes.some()) && failed(s.admitDue(ctx, &r)) {
		return r, errors.Join(errs...)
	}
	pruned, err := s.prune(ctx, w, o, &r)
	if failed(err) {
		return r, errors.Join(errs...)
	}
	if t, ok := s.driver.(Tidier); ok && w.Prune && failed(s.within(ctx, backends.AllOwnTables, func(ctx context.Context) error { return t.Tidy(ctx, w.Limit) })) {
		return r, errors.Join(errs...)
	}
	if changed || pruned {
		w.Prune = false
		next, err := s.findDue(ctx, w, false)
		if failed(err); err != nil {
			r.Ready = o.ready
			return r, errors.Join(errs...)
		}
		if stuck := same(o.RunAt, next.RunAt) && next.promote || same(o.DueAt, next.DueAt) && next.overdue || same(o.ExpireAt, next.ExpireAt) && next.expire; stuck && r.Promoted+r.Expired+len(r.Reaped) == 0 {
			next.next = -1 // jobs that are refused or locked must not make maintenance hurry
		}
		o = next
		r.More = r.More || o.MoreLost && len(o.Lost) > 0
	}
	r.Ready, r.Next = o.ready, o.next
	r.BatchesDue = o.Batches
	if o.FireAt != nil {
		r.NextSchedule = max(o.FireAt.Sub(o.At), 0)
		r.ScheduleDue = r.NextSchedule == 0
	}
	// What was not found for so long was settled, or reaped by another sidecar.
	s.obstacles.Tried(s.obstacles.Time().Add(-obstacleGrace), func(o *backends.Obstacle) bool { return o.Doing == backends.DoingGiveBack && o.Table == "" })
	return r, errors.Join(errs...)
}

// same reports whether two times are equal, or both unknown.
func same(a, b *time.Time) bool { return a == nil && b == nil || a != nil && b != nil && a.Equal(*b) }

// obstacleGrace is how long after its time maintenance certainly has tried an obstacle again. Searches for lost sidecars can
// pause for a while.
const obstacleGrace = 2 * time.Minute

// runSteps promotes due jobs and reaps claims. It passes the errors to failed.
func (s *Store) runSteps(ctx context.Context, w backends.Maintenance, o dueWork, r *backends.MaintenanceResult, failed func(error) (outage bool)) (changed bool, outage error) {
	limit := w.Limit
	if n := s.traits.MaxRows; n > 0 {
		limit = min(limit, n)
	}
	for _, step := range []struct {
		due bool
		run func() error
	}{
		{o.expire, func() error { return s.expire(ctx, o.Due, r, limit) }},
		{o.promote, func() error { return s.promote(ctx, o.Due, r, limit) }},
		{o.overdue || len(o.Lost) > 0, func() error { return s.reap(ctx, o, r, w.Jitter, limit) }},
		{o.Dead, func() error {
			return s.step(ctx, r, limit, backends.OwnSidecars|backends.OwnCancelled|backends.OwnJobs, func(ctx context.Context, tx Tx, _ *stepResult) error { return tx.Forget(ctx, o.Due) })
		}},
	} {
		if step.due {
			changed = true
			if err := step.run(); failed(err) {
				return changed, err
			}
		}
	}
	return changed, nil
}

// promote makes due jobs ready.
func (s *Store) promote(ctx context.Context, d Due, r *backends.MaintenanceResult, limit int) error {
	more, err := s.eachApart(ctx, backends.DoingPromote, limit, func(only []int64, limit int) error {
		return s.step(ctx, r, limit, backends.OwnJobs, func(ctx context.Context, tx Tx, b *stepResult) (err error) {
			b.seen, err = tx.Promote(ctx, d, only, limit, b.wasPromoted)
			return err
		})
	}, func(ctx context.Context, tx Tx, limit int) ([]Found, error) { return tx.FindScheduled(ctx, d, limit) })
	r.More = r.More || more
	return err
}

// expire ends waiting jobs whose time is over.
func (s *Store) expire(ctx context.Context, d Due, r *backends.MaintenanceResult, limit int) error {
	more, err := s.eachApart(ctx, backends.DoingExpire, limit, func(only []int64, limit int) error {
		return s.step(ctx, r, limit, reapNeeds, func(ctx context.Context, tx Tx, b *stepResult) error {
			x := tx.(Expirer)
			jobs, seen, err := x.LockExpired(ctx, d, only, limit)
			if b.seen = seen; err != nil || len(jobs) == 0 {
				return err
			}
			for _, j := range jobs {
				b.failed.Add(j.Queue, backends.CauseExpired, !j.Remove)
			}
			b.expired = len(jobs)
			x.Expire(jobs)
			return tx.Flush(ctx)
		})
	}, func(ctx context.Context, tx Tx, limit int) (found []Found, err error) {
		jobs, _, err := tx.(Expirer).LockExpired(ctx, d, nil, limit)
		for _, j := range jobs {
			found = append(found, Found{j.ID, j.Queue})
		}
		return found, err
	})
	r.More = r.More || more
	return err
}

// eachApart runs try for all due jobs. If the database refuses one of them, or has refused some before, it finds
// the jobs and tries them apart.
func (s *Store) eachApart(ctx context.Context, doing string, limit int, try func(only []int64, limit int) error, find func(ctx context.Context, tx Tx, limit int) ([]Found, error)) (more bool, err error) {
	began, known := s.obstacles.Time(), s.obstacles.Jobs(doing)
	_, refusing := s.obstacles.Waiting(doing)
	if known+len(refusing) == 0 {
		if err = try(nil, limit); err == nil || IsOutage(ctx, err) {
			return false, err
		}
	}
	var found []Found
	most := limit + known
	if err := s.Write(ctx, TxOptions{Unsynced: true}, func(ctx context.Context, tx Tx) (err error) {
		found, err = find(ctx, tx, most)
		return err
	}); err != nil {
		return false, err
	}
	all := len(found)
	found = slices.DeleteFunc(found, func(j Found) bool { return slices.Contains(refusing, j.Queue) })
	apart := Apart[Found]{
		Set: &s.obstacles,
		Obstacle: func(j Found) backends.Obstacle {
			return backends.Obstacle{Queue: j.Queue, Job: strconv.FormatInt(j.ID, 10), Doing: doing}
		},
		Try: func(some []Found) error {
			ids := make([]int64, len(some))
			for i := range some {
				ids[i] = some[i].ID
			}
			slices.Sort(ids)
			return try(ids, len(ids))
		},
	}
	fresh := apart.New(found)
	fresh = fresh[:min(limit, len(fresh))]
	if known+len(refusing) > 0 && len(fresh) > 0 {
		err = apart.Try(fresh)
	}
	more, err = apart.After(ctx, began, found, err)
	if all < most {
		s.obstacles.Tried(began, func(o *backends.Obstacle) bool {
			return o.Doing == doing && o.Table == "" && !slices.Contains(refusing, o.Queue) &&
				!slices.ContainsFunc(found, func(j Found) bool { return strconv.FormatInt(j.ID, 10) == o.Job })
		})
	}
	return more || err == nil && len(fresh) == limit, err
}

// reap reaps overdue claims, and then those of lost sidecars.
func (s *Store) reap(ctx context.Context, o dueWork, r *backends.MaintenanceResult, jitter backends.Jitter, limit int) error {
	var errs []error
	for _, part := range []struct {
		due, some bool
		lock      lockStep
	}{
		{true, o.overdue, func(ctx context.Context, tx Tx, limit int) ([]*Row, int, error) { return tx.LockDue(ctx, o.Due, limit) }},
		{false, len(o.Lost) > 0, func(ctx context.Context, tx Tx, limit int) ([]*Row, int, error) {
			return tx.LockLost(ctx, o.Due, limit)
		}},
	} {
		if !part.some {
			continue
		}
		stuck, err := s.reapBatch(ctx, r, jitter, limit, part.lock)
		if errs = append(errs, err); err != nil && IsOutage(ctx, err) {
			break
		}
		if stuck && !part.due && o.MoreLost {
			s.owners.refuse(o.Lost, s.obstacles.Time())
		}
	}
	return errors.Join(errs...)
}

// lockStep locks claims that have ended.
type lockStep func(ctx context.Context, tx Tx, limit int) (rows []*Row, seen int, err error)

// reapNeeds are the tables that most reaps need.
const reapNeeds = backends.OwnJobs | backends.OwnKeys | backends.OwnFailures | backends.OwnQueues

// reapBatch reaps a batch of claims. Those that the database refuses to end keep the others from nothing. stuck: it found
// only such claims.
func (s *Store) reapBatch(ctx context.Context, r *backends.MaintenanceResult, jitter backends.Jitter, limit int, lock lockStep) (stuck bool, _ error) {
	began := s.obstacles.Time()
	most := limit + s.obstacles.Jobs(backends.DoingGiveBack)
	apart := Apart[*Row]{Set: &s.obstacles, Obstacle: func(row *Row) backends.Obstacle {
		return backends.Obstacle{Queue: row.Queue, Job: strconv.FormatInt(row.ID, 10), Doing: backends.DoingGiveBack}
	}}
	var found []*Row
	seen := 0
	reap := func(choose func(rows []*Row, n int) []*Row) error {
		need, open := reapNeeds, s.tables.Of(backends.OwnPending) == nil
		if open {
			need |= backends.OwnPending
		}
		return s.step(ctx, r, 0, need, func(ctx context.Context, tx Tx, b *stepResult) error {
			rows, n, err := lock(ctx, tx, most)
			if err != nil {
				return err
			}
			if !open {
				all := len(rows)
				rows = slices.DeleteFunc(rows, func(row *Row) bool { return row.Pending })
				n -= all - len(rows)
			}
			return b.reap(ctx, s, tx, choose(slices.Clone(rows), n), s.traits.Silent, jitter)
		})
	}
	apart.Try = func(some []*Row) error {
		ids := map[int64]bool{}
		for _, row := range some {
			ids[row.ID] = true
		}
		return reap(func(rows []*Row, _ int) []*Row {
			return slices.DeleteFunc(rows, func(row *Row) bool { return !ids[row.ID] })
		})
	}
	err := reap(func(rows []*Row, n int) []*Row {
		found, seen = rows, n
		_, refusing := s.obstacles.Waiting(backends.DoingGiveBack)
		some := slices.DeleteFunc(apart.New(rows), func(row *Row) bool { return slices.Contains(refusing, row.Queue) })
		return some[:min(limit, len(some))]
	})
	fresh := seen - (len(found) - len(apart.New(found)))
	more, err := apart.After(ctx, began, found, err)
	r.More = r.More || more || err == nil && fresh >= limit
	return len(found) > 0 && seen == len(found) && len(apart.New(found)) == 0, err
}

// stepResult is what one transaction of maintenance did.
type stepResult struct {
	seen, promoted, expired int
	reaped                  map[backends.Cause]int
	ready                   []string
	failed                  backends.FailedCounts
	backs                   []giveBack
	left                    []Group // in which slots became free
	pending                 []backends.StoredPending
}

// wasPromoted counts a promoted job of a queue; empty: it is blocked.
func (s *stepResult) wasPromoted(queue string) {
	if s.promoted++; queue != "" {
		s.ready = append(s.ready, queue)
	}
}

// step runs f, which needs tables, as one transaction. It adds the result to r after the commit.
func (s *Store) step(ctx context.Context, r *backends.MaintenanceResult, limit int, need backends.OwnTables, f func(ctx context.Context, tx Tx, b *stepResult) error) error {
	var b stepResult
	run := func(noNotes bool) error {
		return s.within(ctx, need, func(ctx context.Context) error {
			return s.Write(ctx, TxOptions{Brief: s.tables.Some(), NoNotes: noNotes}, func(ctx context.Context, tx Tx) error {
				b = stepResult{reaped: map[backends.Cause]int{}}
				return f(ctx, tx, &b)
			})
		})
	}
	noNotes := !s.storesNotes()
	var refused error
	err := run(noNotes)
	if !noNotes && len(b.left) > 0 && isOfTable(ctx, err) {
		noNotes, refused = true, err
		if run(true) == nil {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	s.noted(b.left, noNotes, refused)
	s.gaveBack(b.backs)
	r.Promoted += b.promoted
	r.Expired += b.expired
	for c, n := range b.reaped {
		r.Reaped[c] += n
	}
	r.Failed.AddAll(b.failed)
	r.Pending = append(r.Pending, b.pending...)
	for _, q := range b.ready {
		if !slices.Contains(r.MadeReady, q) {
			r.MadeReady = append(r.MadeReady, q)
		}
	}
	r.More = r.More || limit > 0 && b.seen >= limit
	return nil
}

// reap ends the claims of locked rows for their Cause.
func (s *stepResult) reap(ctx context.Context, store *Store, tx Tx, rows []*Row, silent bool, jitter backends.Jitter) error {
	for _, row := range rows {
		if row.Cause == backends.CauseSidecarLost && row.Lease > 0 { // a timed lease doesn't need an owner
			row.renew()
			row.Change.Owner = 0
			continue
		}
		row.end(row.AfterReap(row.Cause, jitter.Of(row.Queue)))
	}
	changed := 0
	_, s.backs = queueChanges(tx, rows, nil, func(row *Row) {
		changed++
		if row.Change.Kind == Renewed {
			return
		}
		s.reaped[row.Cause]++
		s.failed.Add(row.Queue, row.Cause, row.Change.State == backends.StateDead)
		if row.Change.State == backends.StateReady {
			s.ready = append(s.ready, row.Queue)
		}
	})
	s.left = distinctGroups(leaveGroups(tx, slices.Values(rows)))
	noteGroups(tx, s.left)
	if err := tx.Flush(ctx); err != nil {
		return err
	}
	if err := store.noteBatches(ctx, tx, rows); err != nil {
		return err
	}
	if silent && changed < len(rows) {
		return backends.Refused(ErrSilent)
	}
	after, err := store.settlePending(ctx, tx, rows)
	s.pending = after.jobs()
	for _, stored := range after.stored {
		if stored.ready {
			s.ready = append(s.ready, stored.Queue)
		}
	}
	if s.left = distinctGroups(append(s.left, after.groups...)); err != nil || len(after.groups) == 0 {
		return err
	}
	return tx.Flush(ctx)
}

// dueWork is the work that Driver.FindDue found.
type dueWork struct {
	Due
	promote, overdue, expire bool
	ready                    []string
	next                     time.Duration // until the next promotion or end of a lease; < 0: none is known
}

// The search compares the owners of claims with the living sidecars. It is quick, unless an old snapshot keeps
// the index entries of claims that are gone. If it takes longer than slowSearch, it runs only every
// searchEvery, and at once if a sidecar is known to be dead.
const (
	slowSearch  = 50 * time.Millisecond
	searchEvery = 5 * time.Second
)

// findDue calls Driver.FindDue. With all it also looks for cancelled claims and schedules, which are in tables of their own.
func (s *Store) findDue(ctx context.Context, w backends.Maintenance, all bool) (o dueWork, err error) {
	need := backends.OwnJobs | backends.OwnQueues | backends.OwnSidecars
	if all {
		need |= backends.OwnCancelled | backends.OwnSchedules
	}
	if w.Prune {
		need |= backends.OwnKeys
	}
	err = s.within(ctx, need, func(ctx context.Context) error {
		return s.Again(ctx, func(ctx context.Context) (err error) {
			s.owners.mu.Lock()
			owners := !w.Watched && !s.LocalTime().Before(s.owners.next)
			s.owners.mu.Unlock()
			o, err = s.findDueOnce(ctx, w, owners, all)
			if err == nil && o.Dead && !owners {
				o, err = s.findDueOnce(ctx, w, true, all)
			}
			return err
		})
	})
	return o, err
}

func (s *Store) findDueOnce(ctx context.Context, w backends.Maintenance, owners, all bool) (o dueWork, err error) {
	now := s.LocalTime()
	policies := make([]backends.Policy, len(w.Waiting))
	for i, q := range w.Waiting {
		policies[i].Queue = q
	}
	seen := map[string]*learned{}
	schedules := ManagedSchedules
	switch {
	case !all:
		schedules = NoSchedules
	case w.AdoptedSchedules:
		schedules = AllSchedules
	case w.Watched:
		schedules = NoSchedules
	}
	q := DueQuery{
		Schedules: schedules,
		Prune:     w.Prune, Owners: owners, Cancelled: all, Refused: s.owners.refusedNow(s.obstacles.Time()), Sidecar: w.Sidecar, Watched: w.Watched, Waiting: w.Waiting, Pieces: s.pieces(policies, seen, now),
		JobsFrom: s.jobTrail.From(now), KeysFrom: s.keyTrail.From(now), DueFrom: s.dueTrail.From(now, w.Watched),
	}
	if o.Due, err = s.driver.FindDue(ctx, q); err != nil {
		return o, err
	}
	took := s.took(now)
	s.dueTrail.Looked(q.DueFrom, now, took, o.Due)
	if owners && took > slowSearch {
		s.owners.mu.Lock()
		s.owners.next = now.Add(searchEvery)
		s.owners.mu.Unlock()
	}
	if w.Prune {
		s.jobTrail.Scanned(q.JobsFrom, now, took)
		s.keyTrail.Scanned(q.KeysFrom, now, took)
	}
	o.next = -1
	for _, t := range []*time.Time{o.RunAt, o.DueAt, o.ExpireAt} {
		if t != nil && (o.next < 0 || t.Sub(o.At) < o.next) {
			o.next = max(t.Sub(o.At), 0)
		}
	}
	o.promote, o.overdue = o.Promote || o.RunAt != nil && !o.RunAt.After(o.At), o.DueAt != nil && !o.DueAt.After(o.At)
	o.expire = o.ExpireAt != nil && !o.ExpireAt.After(o.At)
	for i, queue := range w.Waiting {
		switch l := seen[queue]; {
		case o.Ready[i] || s.Cursors.Returned(queue, o.Returns[i]): // a claim has to scan
			o.ready = append(o.ready, queue)
		case s.Cursors.Share > 0 && l.Whole:
			s.Cursors.ScannedWhole(queue, now, took)
		case s.Cursors.Share == 0 && !l.Left:
			s.Cursors.Scanned(queue, now, took)
		}
	}
	return o, nil
}
