package sqlite

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// outlook is what a look without writing found to do, and what it saw.
type outlook struct {
	promote, due  bool
	orphaned      []int64 // owners of claimed rows who are dead or unknown
	dead          bool    // there are rows of dead hosts
	expired, keys int64   // since when the first of them is over, ms; 0: there is none
	marks         bool    // there are numbers of handles long gone
	ready         []string
	next          time.Duration
	never         int64 // a scheduled job that never becomes due; 0: there is none
}

// Sweep implements backends.Backend. Where nothing is due it writes nothing.
func (s *Store) Maintain(ctx context.Context, w backends.Maintenance) (backends.MaintenanceResult, error) {
	r := backends.MaintenanceResult{Reaped: map[backends.Cause]int{}, Next: -1}
	if len(w.Suspects) > 0 {
		if err := s.bite(ctx, &r, 0, func(t *tx, _ *bitten) error { return t.giveUp(w.Suspects) }); err != nil {
			return r, err
		}
	}
	o, err := s.lookAround(ctx, w)
	if err != nil {
		return r, err
	}
	bites := []struct {
		due bool
		f   func(t *tx, b *bitten) error
	}{
		{o.promote, func(t *tx, b *bitten) error { return t.promoteDue(w.Limit, b) }},
		{o.due, func(t *tx, b *bitten) error { return t.reapDue(w.Limit, b) }},
		{len(o.orphaned) > 0 || o.dead, func(t *tx, b *bitten) error { return t.reapOrphans(o.orphaned, w.Limit, b) }},
		{o.marks, func(t *tx, _ *bitten) error { return t.pruneMarks() }},
	}
	if o.never != 0 {
		r.Unusable = batch.Never(o.never, s.path)
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
		since int64
		f     func(t *tx, most int) (int, error)
	}{{o.expired, (*tx).pruneJobs}, {o.keys, (*tx).pruneKeys}} {
		if p.since != 0 {
			bit = true
			r.PruneOverdue = max(r.PruneOverdue, time.Duration(s.now().UnixMilli()-p.since)*time.Millisecond)
			if err := s.prune(ctx, &r, w.PruneLimit(), p.f); err != nil {
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
	fallen         backends.FailedCounts
}

// bite runs f as one transaction, and adds what it did to r once it is committed.
func (s *Store) bite(ctx context.Context, r *backends.MaintenanceResult, limit int, f func(t *tx, b *bitten) error) error {
	b := bitten{reaped: map[backends.Cause]int{}}
	var freed []string
	if err := s.write(ctx, &s.writer, s.openWriter, func(t *tx) error {
		err := f(t, &b)
		freed = t.freed
		return err
	}); err != nil {
		return err
	}
	r.Promoted += b.promoted
	for c, n := range b.reaped {
		r.Reaped[c] += n
	}
	r.Failed.AddAll(b.fallen)
	for _, q := range freed {
		if !slices.Contains(r.MadeReady, q) {
			r.MadeReady = append(r.MadeReady, q)
		}
	}
	r.More = r.More || limit > 0 && b.rows >= limit
	return nil
}

func (s *Store) lookAround(ctx context.Context, w backends.Maintenance) (o outlook, err error) {
	err = s.reading(ctx, func(t *tx) error {
		next := int64(math.MaxInt64)
		first := func(sql string, column int) (due bool, err error) {
			err = t.query(sql, func(r row) error {
				due = r.int(column) <= t.now
				next = min(next, r.int(column))
				return nil
			}, 1)
			return due, err
		}
		if o.promote, err = first(t.sql.scheduled, 2); err != nil {
			return err
		}
		if o.due, err = first(t.sql.due, 1); err != nil {
			return err
		}
		o.next = -1
		if next < math.MaxInt64 {
			o.next = batch.FromMS(max(next-t.now, 0))
		}
		if err := t.lookForLost(&o); err != nil {
			return err
		}
		if w.Prune {
			for sql, since := range map[string]*int64{t.sql.expired: &o.expired, t.sql.expiredKeys: &o.keys} {
				if err := t.query(sql, func(r row) error {
					*since = r.int(2)
					return nil
				}, t.now, 1); err != nil {
					return err
				}
			}
			if err := t.query(t.sql.never, func(r row) error { o.never = r.int(0); return nil }); err != nil {
				return err
			}
			if o.marks, err = t.exists(t.sql.oldMarked, t.now-markAge.Milliseconds()); err != nil {
				return err
			}
		}
		for _, q := range w.Waiting {
			ready, err := t.exists(t.sql.anyReady, q)
			if err != nil {
				return err
			}
			if ready {
				o.ready = append(o.ready, q)
			}
		}
		return nil
	})
	return o, err
}

// lookForLost finds the owners of claims who are not alive: it steps through the
// owners, of whom there are as many as sidecars, not through the rows.
func (t *tx) lookForLost(o *outlook) (err error) {
	for from, more := int64(math.MinInt64), true; more; {
		owner, found := int64(0), false
		if err := t.query(t.sql.nextOwner, func(r row) error {
			owner, found = r.int(0), true
			return nil
		}, from); err != nil {
			return err
		}
		if !found {
			break
		}
		if owner != 0 {
			lives, err := t.exists(t.sql.lives, owner)
			if err != nil {
				return err
			}
			if !lives {
				o.orphaned = append(o.orphaned, owner)
			}
		}
		from, more = owner+1, owner < math.MaxInt64
	}
	o.dead, err = t.exists(t.sql.deadHosts)
	return err
}

// rows collects what a query finds before anything is changed under it.
func (t *tx) rows(sql string, keep func(r row) bool, args ...any) (found []row, err error) {
	err = t.query(sql, func(r row) error {
		if !keep(r) {
			return errStop
		}
		found = append(found, slices.Clone(r))
		return nil
	}, args...)
	return found, err
}

func (t *tx) promoteDue(limit int, b *bitten) error {
	due, err := t.rows(t.sql.scheduled, func(r row) bool { return r.int(2) <= t.now }, limit)
	if err != nil {
		return err
	}
	for _, r := range due {
		position, err := t.next()
		if err != nil {
			return err
		}
		if err := t.one(t.sql.promote, position, t.now, r.int(0)); err != nil {
			return err
		}
		t.free(r.text(1))
	}
	b.rows, b.promoted = len(due), len(due)
	return nil
}

// reapDue takes back timed leases that ended and runs over their deadline.
func (t *tx) reapDue(limit int, b *bitten) error {
	due, err := t.rows(t.sql.due, func(r row) bool { return r.int(1) <= t.now }, limit)
	if err != nil {
		return err
	}
	for _, r := range due {
		cause := backends.CauseLeaseEnded
		if !r.null(2) && r.int(2) <= r.int(1) {
			cause = backends.CauseTimedOut
		}
		if err := t.reap(r.int(0), cause, b); err != nil {
			return err
		}
	}
	b.rows = len(due)
	return nil
}

func (t *tx) reap(id int64, cause backends.Cause, b *bitten) error {
	l, err := t.find(t.sql.claimed, id)
	if err != nil || l == nil {
		return err
	}
	b.reaped[cause]++
	return t.fall(l, l.standing().AfterReap(cause), cause, &b.fallen)
}

// giveUp marks the suspects dead that still look the same.
func (t *tx) giveUp(suspects []backends.Suspect) error {
	for _, s := range suspects {
		if _, err := t.exec(t.sql.giveUp, int64(s.Host), int64(s.Heartbeats), t.now, t.now+ms(s.Timeout)); err != nil {
			return err
		}
	}
	return nil
}

// reapOrphans takes back the session leases whose owner is dead or unknown. A
// timed lease needs no owner: it becomes nobody's, so that the next look does not
// find it again. A dead host that owns nothing any more is forgotten.
func (t *tx) reapOrphans(owners []int64, limit int, b *bitten) error {
	for _, owner := range owners {
		lives, err := t.exists(t.sql.lives, owner) // it may have joined since
		if err != nil || lives {
			return err
		}
		rows, err := t.rows(t.sql.owned, func(row) bool { return true }, owner, limit-b.rows)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if r.null(1) {
				err = t.reap(r.int(0), backends.CauseSidecarLost, b)
			} else {
				err = t.one(t.sql.disown, r.int(0))
			}
			if err != nil {
				return err
			}
		}
		if b.rows += len(rows); b.rows >= limit {
			return nil
		}
	}
	dead, err := t.rows(t.sql.deadHosts, func(row) bool { return true })
	if err != nil {
		return err
	}
	for _, r := range dead {
		owns, err := t.exists(t.sql.owned, r.int(0), 1)
		if err == nil && !owns {
			_, err = t.exec(t.sql.forget, r.int(0))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prune runs f as one transaction. What others wait for is only how long that lasts,
// and not how long it waited itself.
func (s *Store) prune(ctx context.Context, r *backends.MaintenanceResult, most int, f func(t *tx, most int) (int, error)) error {
	var began time.Time
	n := 0
	err := s.write(ctx, &s.writer, s.openWriter, func(t *tx) (err error) {
		began = time.Now()
		n, err = f(t, most)
		return err
	})
	if err == nil {
		r.AddPruned(n, n, most, time.Since(began))
	}
	return err
}

func (t *tx) pruneJobs(most int) (int, error) {
	rows, err := t.rows(t.sql.expired, func(row) bool { return true }, t.now, most)
	if err != nil {
		return 0, err
	}
	for _, r := range rows {
		if err := t.one(t.sql.remove, r.int(0)); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}

func (t *tx) pruneKeys(most int) (int, error) {
	rows, err := t.rows(t.sql.expiredKeys, func(row) bool { return true }, t.now, most)
	if err != nil {
		return 0, err
	}
	for _, r := range rows {
		if _, err := t.exec(t.sql.dropKey, r.text(0), r.text(1)); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}

// markAge is how long the number of a handle that commits no more is kept.
const markAge = 7 * 24 * time.Hour

func (t *tx) pruneMarks() error {
	_, err := t.exec(t.sql.oldMarks, t.now-markAge.Milliseconds())
	return err
}
