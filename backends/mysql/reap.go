package mysql

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/qsidecar/qsidecar/backends"
)

// reap makes the fates of claims come true that nobody ended by a lease.
func (b *bitten) reap(t *tx, j *job, cause backends.Cause) {
	j.meet(t.now, j.standing().Reaped(cause))
	b.reaped[cause]++
	if j.state == backends.StateReady {
		b.freed = append(b.freed, j.queue)
	}
}

// reapDue takes back timed leases that ended and runs over their deadline.
func (b *bitten) reapDue(ctx context.Context, t *tx, lanes []string, limit int) error {
	t.askNow()
	var ids []int64
	for _, lane := range lanes {
		t.pick(&ids, lane, limit)
	}
	if err := t.send(ctx); err != nil {
		return err
	}
	ids = ids[:min(limit, len(ids))]
	found, all, err := t.locked(ctx, ids)
	if err != nil {
		return err
	}
	b.rows = len(ids)
	for _, j := range found {
		if j.state != backends.StateClaimed || j.due == 0 || j.due > t.now {
			continue
		}
		cause := backends.CauseLeaseEnded
		if j.deadline != 0 && j.deadline <= j.due {
			cause = backends.CauseTimedOut
		}
		b.reap(t, j, cause)
	}
	return t.flush(ctx, all)
}

// reapLost takes the claims of an owner that lives no more. A timed lease needs no
// owner: it becomes nobody's, so that the next look does not find it again.
func (b *bitten) reapLost(ctx context.Context, t *tx, owner int64, limit int) error {
	t.askNow()
	var ids []int64
	lives := false
	t.each(func(*result) error {
		lives = true
		return nil
	}, "SELECT 1 FROM qsidecar_hosts WHERE host = ? AND NOT dead", owner) // it may have joined since
	t.each(func(r *result) error {
		ids = append(ids, r.int(0))
		return nil
	}, "SELECT id FROM "+jobs+" WHERE lane = ? ORDER BY urgency, place, id LIMIT ?", ownerLane(owner), limit)
	if err := t.send(ctx); err != nil || lives {
		return err
	}
	found, all, err := t.locked(ctx, ids)
	if err != nil {
		return err
	}
	b.rows = len(ids)
	for _, j := range found {
		switch {
		case j.state != backends.StateClaimed || j.owner != owner:
		case j.lease > 0:
			j.owner, j.change = 0, held
		default:
			b.reap(t, j, backends.CauseSidecarLost)
		}
	}
	return t.flush(ctx, all)
}

// forget deletes the rows of dead hosts that own nothing any more.
func (b *bitten) forget(ctx context.Context, t *tx, dead []int64) error {
	var empty []int64
	for _, host := range dead {
		t.each(func(r *result) error {
			if r.int(0) == 0 {
				empty = append(empty, host)
			}
			return nil
		}, "SELECT EXISTS (SELECT 1 FROM "+jobs+" WHERE lane = ?)", ownerLane(host))
	}
	if err := t.send(ctx); err != nil || len(empty) == 0 {
		return err
	}
	t.wrote = true
	slices.Sort(empty)
	t.add("DELETE FROM qsidecar_hosts WHERE host IN (" + list(empty) + ") AND dead")
	return nil
}

// pruneJobs deletes finished jobs whose time is over.
func (b *bitten) pruneJobs(ctx context.Context, t *tx, limit int) error {
	type end struct {
		at  instant
		job int64
	}
	var ends []end
	var ids []int64
	t.askNow()
	t.each(func(r *result) error {
		ends, ids = append(ends, end{r.instant(0), r.int(1)}), append(ids, r.int(1))
		return nil
	}, "SELECT expires_at, job FROM qsidecar_expiring WHERE expires_at <= "+t.s.sql.clock+" ORDER BY expires_at, job LIMIT ?", limit)
	if err := t.send(ctx); err != nil || len(ids) == 0 {
		return err
	}
	all := map[int64]*job{}
	t.lock(all, slices.Clone(ids), "")
	if err := t.send(ctx); err != nil {
		return err
	}
	for _, j := range all {
		if (j.state == backends.StateDone || j.state == backends.StateDead) && j.expiresAt != 0 && j.expiresAt <= t.now {
			j.change = gone
			b.pruned++
		}
	}
	b.rows = len(ids)
	if err := t.flush(ctx, all); err != nil {
		return err
	}
	t.wrote = true
	for _, e := range ends {
		t.add("DELETE FROM qsidecar_expiring WHERE expires_at = ? AND job = ?", e.at, e.job)
	}
	return nil
}

// pruneKeys deletes keys whose jobs have ended and whose time is over.
func (b *bitten) pruneKeys(ctx context.Context, t *tx, limit int) error {
	type key struct {
		queue string
		key   []byte
	}
	var over []key
	t.askNow()
	t.each(func(r *result) error {
		over = append(over, key{r.text(0), r.bytes(1)})
		return nil
	}, "SELECT queue, `key` FROM qsidecar_keys FORCE INDEX (qsidecar_keys_over) WHERE over_at <= "+t.s.sql.clock+" ORDER BY over_at LIMIT ?", limit)
	if err := t.send(ctx); err != nil || len(over) == 0 {
		return err
	}
	t.wrote = true
	slices.SortFunc(over, func(a, b key) int {
		if a.queue != b.queue {
			return map[bool]int{true: -1, false: 1}[a.queue < b.queue]
		}
		return slices.Compare(a.key, b.key)
	})
	for _, k := range over {
		t.add("DELETE FROM qsidecar_keys WHERE queue = ? AND `key` = ? AND over_at <= ?", k.queue, k.key, t.now)
		t.each(func(r *result) error {
			b.pruned += int(r.int(0))
			return nil
		}, "SELECT ROW_COUNT()")
	}
	b.rows = len(over)
	return nil
}

// janitor goes round the tables beside the jobs, a bite at each visit, and looks
// for what belonged to jobs that somebody deleted by hand.
type janitor struct {
	visits atomic.Int64 // and those that it left out

	mu    sync.Mutex
	job   int64  // the last of qsidecar_failures that was looked at
	queue string // the last of qsidecar_keys
	key   []byte
}

// tidyEvery is how many sweeps that prune there are to one visit.
const tidyEvery = 12

// tidy is one visit. It locks nothing but what it changes, and ids are never used
// again: what it found to be gone stays gone.
func (s *Store) tidy(ctx context.Context, limit int) error {
	s.janitor.mu.Lock()
	defer s.janitor.mu.Unlock()
	at := &s.janitor
	var orphans []int64
	type key struct {
		queue string
		key   []byte
		job   int64
	}
	var keys []key
	jobs, names := 0, 0
	err := s.read(ctx, func(_ context.Context, t *tx) error {
		orphans, keys, jobs, names = nil, nil, 0, 0
		t.each(func(r *result) error {
			jobs++
			at.job = r.int(0)
			if r.null(1) {
				orphans = append(orphans, at.job)
			}
			return nil
		}, "SELECT f.job, (SELECT 1 FROM qsidecar_jobs j WHERE j.id = f.job) FROM qsidecar_failures f WHERE f.job > ? ORDER BY f.job LIMIT ?", at.job, limit)
		t.each(func(r *result) error {
			names++
			at.queue, at.key = r.text(0), r.bytes(1)
			if r.null(3) && r.null(4) {
				keys = append(keys, key{at.queue, at.key, r.int(2)})
			}
			return nil
		}, "SELECT k.queue, k.`key`, k.job, k.state, (SELECT 1 FROM qsidecar_jobs j WHERE j.id = k.job) FROM qsidecar_keys k "+
			"WHERE k.queue > ? OR k.queue = ? AND k.`key` > ? ORDER BY k.queue, k.`key` LIMIT ?", at.queue, at.queue, at.key, limit)
		return nil
	})
	if err != nil {
		return err
	}
	if jobs < limit {
		at.job = 0
	}
	if names < limit {
		at.queue, at.key = "", []byte{}
	}
	if len(orphans)+len(keys) == 0 {
		return nil
	}
	return s.write(ctx, func(_ context.Context, t *tx) error {
		t.wrote = true
		for _, k := range keys {
			t.add("UPDATE qsidecar_keys SET state = 'deleted' WHERE queue = ? AND `key` = ? AND job = ? AND state IS NULL", k.queue, k.key, k.job)
		}
		if len(orphans) > 0 {
			t.add("DELETE FROM qsidecar_failures WHERE job IN (" + list(orphans) + ")")
		}
		return nil
	})
}
