package core

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// DueQuery is what Driver.FindDue has to find out for maintenance.
type DueQuery struct {
	Prune  bool // also find what retention allows to delete
	Owners bool // also find claims whose owners aren't alive

	Host    backends.Identity // the sidecar that asks
	Watched bool              // see backends.Maintenance: only the work of Host matters, and Owners is false

	// Waiting are queues from which workers wait for jobs. Pieces are the pieces of them to scan.
	Waiting []string
	Pieces  []Piece // Piece.Queue is an index of Waiting

	// Where scans for pruning start; zero: from the beginning
	JobsFrom, KeysFrom time.Time

	// Where scans for jobs and claims that are due start. If it isn't zero, those that are due later than in DueWithin
	// don't matter either.
	DueFrom time.Time
}

// DueWithin is how far into the future Driver.FindDue has to search if DueQuery.DueFrom is set. It is longer than the
// pauses of maintenance.
const DueWithin = time.Second

// Due is the result of Driver.FindDue. Times are the database's.
type Due struct {
	At      time.Time  // when Driver.FindDue ran
	RunAt   *time.Time // of the scheduled job that is due first; nil: there is none
	DueAt   *time.Time // the end of the lease or time limit that ends first; nil: there is none
	Lost    []int64    // owners of claimed rows that are dead or unknown
	Dead    bool       // there are dead sidecars
	Jobs    *time.Time // when the first finished job expired; nil: none has
	Keys    *time.Time
	Ready   []bool  // for each of Waiting: whether a job is ready
	Returns []int64 // for each of Waiting: how often jobs returned to their old positions
	Never   int64   // the id of a scheduled job that never becomes due; 0: there is none

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
// The order: mark silent sidecars dead; call Driver.FindDue; promote due jobs; reap overdue claims, then those of lost
// sidecars; forget dead sidecars that own no job; prune; call Driver.FindDue again if anything changed. Each step is a
// transaction of its own.
func (s *Store) Maintain(ctx context.Context, w backends.Maintenance) (backends.MaintenanceResult, error) {
	r := backends.MaintenanceResult{Reaped: map[backends.Cause]int{}, Next: -1}
	if len(w.Suspects) > 0 {
		if err := s.step(ctx, &r, 0, func(ctx context.Context, tx Tx, _ *stepResult) error { return tx.MarkDead(ctx, w.Suspects) }); err != nil {
			return r, err
		}
	}
	o, err := s.findDue(ctx, w)
	if err != nil {
		return r, err
	}
	if o.Never != 0 {
		r.Unusable = fmt.Errorf("qsidecar_jobs row %d in %s: its run_at is not a time of the years 1 to 9999, so the job never becomes ready: set another run_at, or delete it", o.Never, s.address)
	}
	changed, err := s.runSteps(ctx, w, o, &r)
	if err != nil {
		return r, err
	}
	pruned, err := s.prune(ctx, w, o, &r)
	if err != nil {
		return r, err
	}
	if t, ok := s.driver.(Tidier); ok && w.Prune {
		if err := t.Tidy(ctx, w.Limit); err != nil {
			return r, err
		}
	}
	if changed || pruned {
		w.Prune = false
		if o, err = s.findDue(ctx, w); err != nil {
			return r, err
		}
		r.More = r.More || o.MoreLost && len(o.Lost) > 0
	}
	r.Ready, r.Next = o.ready, o.next
	return r, nil
}

// runSteps promotes due jobs and reaps claims.
func (s *Store) runSteps(ctx context.Context, w backends.Maintenance, o dueWork, r *backends.MaintenanceResult) (changed bool, err error) {
	limit := w.Limit
	if n := s.traits.MaxRows; n > 0 {
		limit = min(limit, n)
	}
	reap := func(lock func(tx Tx) ([]*Row, int, error)) func(context.Context, Tx, *stepResult) error {
		return func(ctx context.Context, tx Tx, b *stepResult) (err error) {
			rows, seen, err := lock(tx)
			b.seen = seen
			if err != nil {
				return err
			}
			return b.reap(ctx, tx, rows, w.Jitter)
		}
	}
	for _, step := range []struct {
		due bool
		run func(ctx context.Context, tx Tx, b *stepResult) error
	}{
		{o.promote, func(ctx context.Context, tx Tx, b *stepResult) (err error) {
			b.seen, err = tx.Promote(ctx, o.Due, limit, func(queue string) { b.promoted, b.ready = b.promoted+1, append(b.ready, queue) })
			return err
		}},
		{o.overdue, reap(func(tx Tx) ([]*Row, int, error) { return tx.LockDue(ctx, o.Due, limit) })},
		{len(o.Lost) > 0, reap(func(tx Tx) ([]*Row, int, error) { return tx.LockLost(ctx, o.Due, limit) })},
		{o.Dead, func(ctx context.Context, tx Tx, _ *stepResult) error { return tx.Forget(ctx, o.Due) }},
	} {
		if step.due {
			changed = true
			if err := s.step(ctx, r, limit, step.run); err != nil {
				return changed, err
			}
		}
	}
	return changed, nil
}

// stepResult is what one transaction of maintenance did.
type stepResult struct {
	seen, promoted int
	reaped         map[backends.Cause]int
	ready          []string
	failed         backends.FailedCounts
	backs          []giveBack
}

// step runs f as one transaction. It adds the result to r after the commit.
func (s *Store) step(ctx context.Context, r *backends.MaintenanceResult, limit int, f func(ctx context.Context, tx Tx, b *stepResult) error) error {
	var b stepResult
	if err := s.Write(ctx, TxOptions{}, func(ctx context.Context, tx Tx) error {
		b = stepResult{reaped: map[backends.Cause]int{}}
		return f(ctx, tx, &b)
	}); err != nil {
		return err
	}
	s.gaveBack(b.backs)
	r.Promoted += b.promoted
	for c, n := range b.reaped {
		r.Reaped[c] += n
	}
	r.Failed.AddAll(b.failed)
	for _, q := range b.ready {
		if !slices.Contains(r.MadeReady, q) {
			r.MadeReady = append(r.MadeReady, q)
		}
	}
	r.More = r.More || limit > 0 && b.seen >= limit
	return nil
}

// reap ends the claims of locked rows for their Cause.
func (b *stepResult) reap(ctx context.Context, tx Tx, rows []*Row, jitter backends.Jitter) error {
	for _, row := range rows {
		row.end(row.AfterReap(row.Cause, jitter.Of(row.Queue)))
	}
	_, b.backs = queueChanges(tx, rows, nil, func(row *Row) {
		b.reaped[row.Cause]++
		b.failed.Add(row.Queue, row.Cause, row.Change.State == backends.StateDead)
		if row.Change.State == backends.StateReady {
			b.ready = append(b.ready, row.Queue)
		}
	})
	return tx.Flush(ctx)
}

// dueWork is the work that Driver.FindDue found.
type dueWork struct {
	Due
	promote, overdue bool
	ready            []string
	next             time.Duration // until the next promotion or end of a lease; < 0: none is known
}

// The search compares the owners of claims with the living sidecars. It is quick, unless an old snapshot keeps
// the index entries of claims that are gone. If it takes longer than slowSearch, it runs only every
// searchEvery, and at once if a sidecar is known to be dead.
const (
	slowSearch  = 50 * time.Millisecond
	searchEvery = 5 * time.Second
)

func (s *Store) findDue(ctx context.Context, w backends.Maintenance) (o dueWork, err error) {
	err = s.Again(ctx, func(ctx context.Context) (err error) {
		s.owners.mu.Lock()
		owners := !w.Watched && !s.LocalTime().Before(s.owners.next)
		s.owners.mu.Unlock()
		o, err = s.findDueOnce(ctx, w, owners)
		if err == nil && o.Dead && !owners {
			o, err = s.findDueOnce(ctx, w, true)
		}
		return err
	})
	return o, err
}

func (s *Store) findDueOnce(ctx context.Context, w backends.Maintenance, owners bool) (o dueWork, err error) {
	now := s.LocalTime()
	policies := make([]backends.Policy, len(w.Waiting))
	for i, q := range w.Waiting {
		policies[i].Queue = q
	}
	seen := map[string]*learned{}
	q := DueQuery{
		Prune: w.Prune, Owners: owners, Host: w.Host, Watched: w.Watched, Waiting: w.Waiting, Pieces: s.pieces(policies, seen, now),
		JobsFrom: s.jobTrail.From(now), KeysFrom: s.keyTrail.From(now), DueFrom: s.dueTrail.From(now, w.Watched),
	}
	if o.Due, err = s.driver.FindDue(ctx, q); err != nil {
		return o, err
	}
	took := s.LocalTime().Sub(now)
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
	for _, t := range []*time.Time{o.RunAt, o.DueAt} {
		if t != nil && (o.next < 0 || t.Sub(o.At) < o.next) {
			o.next = max(t.Sub(o.At), 0)
		}
	}
	o.promote, o.overdue = o.Promote || o.RunAt != nil && !o.RunAt.After(o.At), o.DueAt != nil && !o.DueAt.After(o.At)
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
