package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// outlook is what a look without writing found to do, and what it saw.
type outlook struct {
	promote, due  bool
	lost          []int64    // owners of claimed rows who are dead or unknown
	dead          bool       // there are rows of dead hosts
	expired, keys *time.Time // since when the first of them is over; nil: there is none
	ready         []string
	next          time.Duration
	never         *int64    // a scheduled job that never becomes due
	at            time.Time // of the look
}

// Sweep implements backends.Backend. Where nothing is due it is one statement.
func (s *Store) Maintain(ctx context.Context, w backends.Maintenance) (backends.MaintenanceResult, error) {
	r := backends.MaintenanceResult{Reaped: map[backends.Cause]int{}, Next: -1}
	if len(w.Suspects) > 0 {
		if err := s.bite(ctx, &r, 0, func(t *tx, _ *bitten) { giveUp(t, w.Suspects) }); err != nil {
			return r, err
		}
	}
	o, err := s.lookAround(ctx, w)
	if err != nil {
		return r, err
	}
	bites := []struct {
		due bool
		f   func(t *tx, b *bitten)
	}{
		{o.promote, func(t *tx, b *bitten) { b.promote(t, w.Limit) }},
		{o.due, func(t *tx, b *bitten) { b.reap(t, s.sql.reapDue, w.Limit) }},
		{len(o.lost) > 0, func(t *tx, b *bitten) { b.reap(t, s.sql.reapLost, o.lost, w.Limit) }},
		{o.dead, func(t *tx, b *bitten) { t.add(s.sql.forget, nil) }},
	}
	if o.never != nil {
		r.Unusable = batch.Never(*o.never, s.place)
	}
	bit := false
	for _, b := range bites {
		if b.due {
			bit = true
			if err := s.bite(ctx, &r, w.Limit, b.f); err != nil {
				return r, err
			}
		}
	}
	for _, p := range []struct {
		since *time.Time
		trail *batch.Trail
		sql   string
	}{{o.expired, &s.trails.jobs, s.sql.pruneJobs}, {o.keys, &s.trails.keys, s.sql.pruneKeys}} {
		if p.since != nil {
			bit = true
			r.PruneOverdue = max(r.PruneOverdue, o.at.Sub(*p.since))
			if err := s.prune(ctx, &r, p.sql, p.trail, *p.since, w.PruneLimit()); err != nil {
				return r, err
			}
		}
	}
	if bit {
		w.Prune = false
		if o, err = s.lookAround(ctx, w); err != nil {
			return r, err
		}
	}
	r.Ready, r.Next = o.ready, o.next
	return r, nil
}

// bitten is what one bite did.
type bitten struct {
	rows, promoted int
	reaped         map[backends.Cause]int
	freed          []string
	fallen         backends.FailedCounts
}

// bite runs f as one transaction, and adds what it did to r once it is committed.
func (s *Store) bite(ctx context.Context, r *backends.MaintenanceResult, limit int, f func(t *tx, b *bitten)) error {
	var b bitten
	if err := s.write(ctx, scope{}, func(t *tx, round int) (bool, error) {
		if round == 0 {
			b = bitten{reaped: map[backends.Cause]int{}}
			f(t, &b)
		}
		return round == 0, nil
	}); err != nil {
		return err
	}
	r.Promoted += b.promoted
	for c, n := range b.reaped {
		r.Reaped[c] += n
	}
	r.Failed.AddAll(b.fallen)
	for _, q := range b.freed {
		if !slices.Contains(r.MadeReady, q) {
			r.MadeReady = append(r.MadeReady, q)
		}
	}
	r.More = r.More || limit > 0 && b.rows >= limit
	return nil
}

func (b *bitten) promote(t *tx, limit int) {
	t.each(t.s.sql.promote, func(rows pgx.Rows) error {
		var queue string
		if err := rows.Scan(&queue); err != nil {
			return err
		}
		b.rows, b.promoted, b.freed = b.rows+1, b.promoted+1, append(b.freed, queue)
		return nil
	}, limit)
}

func (b *bitten) reap(t *tx, sql string, args ...any) {
	t.each(sql, func(rows pgx.Rows) error {
		f, err := t.scanFailed(rows)
		if err != nil {
			return err
		}
		b.rows++
		b.reaped[f.cause]++
		b.fallen.Add(f.queue, f.cause, f.state == backends.StateDead)
		if f.state == backends.StateReady {
			b.freed = append(b.freed, f.queue)
		}
		return nil
	}, args...)
}

// prune deletes what is over, from an instant on. That a crash takes it back harms
// nobody: it need not be on disk.
func (s *Store) prune(ctx context.Context, r *backends.MaintenanceResult, sql string, trail *batch.Trail, from time.Time, most int) error {
	began := time.Now()
	var n int
	var last *time.Time
	if err := s.write(ctx, scope{unsynced: true}, func(t *tx, round int) (bool, error) {
		if round == 0 {
			t.each(sql, func(rows pgx.Rows) error { return rows.Scan(&n, maybe{&last}) }, most, from)
		}
		return round == 0, nil
	}); err != nil {
		return err
	}
	if last != nil {
		trail.Found(*last)
	}
	r.AddPruned(n, n, most, time.Since(began))
	return nil
}

// trails are how far pruning has come.
type trails struct{ jobs, keys batch.Trail }

// giveUp marks the suspects dead that still look the same.
func giveUp(t *tx, suspects []backends.Suspect) {
	var host, beats []int64
	for _, s := range suspects {
		host, beats = append(host, int64(s.Host)), append(beats, int64(s.Heartbeats))
	}
	t.add(t.s.sql.giveUp, nil, host, beats)
}

// slowLook is how long a look may take that compares the claims' owners with the
// hosts. It is short, unless an old snapshot keeps the entries of claims that are
// gone: then the comparison is made every ownersEvery only, and at once where a
// host is known to be dead.
const (
	slowLook    = 50 * time.Millisecond
	ownersEvery = 5 * time.Second
)

func (s *Store) lookAround(ctx context.Context, w backends.Maintenance) (o outlook, err error) {
	err = s.again(ctx, func(ctx context.Context) (err error) {
		s.owners.mu.Lock()
		owners := !s.localTime().Before(s.owners.next)
		s.owners.mu.Unlock()
		o, err = s.lookOnce(ctx, w, owners)
		if err == nil && o.dead && !owners {
			o, err = s.lookOnce(ctx, w, true)
		}
		return err
	})
	return o, err
}

func (s *Store) lookOnce(ctx context.Context, w backends.Maintenance, owners bool) (o outlook, err error) {
	now := s.localTime()
	if s.pooled { // a session of the Store's own has seen it
		epoch, err := s.readEpoch(ctx, s.pool)
		if err != nil {
			return o, err
		}
		s.enter(epoch)
	}

	var x claiming
	x.cursors, x.seen = &s.cursors, map[string]*learned{}
	for _, q := range w.Waiting {
		x.Queues = append(x.Queues, backends.Policy{Queue: q})
	}
	x.to = len(x.Queues)
	p := x.pieces(now)

	from := [2]time.Time{s.trails.jobs.From(now), s.trails.keys.From(now)}
	var run, due *time.Time
	var ready []int32
	var returns []int64
	err = s.rows(ctx, func(rows pgx.Rows) error {
		return rows.Scan(&o.at, maybe{&run}, maybe{&due}, &o.dead, maybe{&o.expired}, maybe{&o.keys}, &o.lost, &ready, &returns, &o.never)
	}, s.sql.look, w.Prune, owners, p.queue, p.policy, p.fromU, p.fromP, p.toU, p.toP, w.Waiting, orNull(from[0]), orNull(from[1]))
	if err != nil {
		return o, err
	}
	took := s.localTime().Sub(now)
	if owners && took > slowLook {
		s.owners.mu.Lock()
		s.owners.next = now.Add(ownersEvery)
		s.owners.mu.Unlock()
	}
	if w.Prune {
		s.trails.jobs.Looked(from[0], now, took)
		s.trails.keys.Looked(from[1], now, took)
	}
	o.next = -1
	for _, t := range []*time.Time{run, due} {
		if t != nil && (o.next < 0 || t.Sub(o.at) < o.next) {
			o.next = max(t.Sub(o.at), 0)
		}
	}
	o.promote, o.due = run != nil && !run.After(o.at), due != nil && !due.After(o.at)
	for i, q := range w.Waiting {
		// Where jobs were given back behind the cursor, a claim has to look.
		if slices.Contains(ready, int32(i+1)) || s.cursors.Returned(q, returns[i]) {
			o.ready = append(o.ready, q)
		} else if !x.seen[q].Left {
			s.cursors.Looked(q, now, took)
		}
	}
	return o, nil
}

// orNull is an instant, or NULL for the zero one.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
