package mysql

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// janitor goes round the tables beside qsidecar_jobs, one batch at each visit. It removes what belonged to
// jobs that were deleted by hand, and rows of sidecars that stopped long ago.
type janitor struct {
	visits atomic.Int64 // all calls of Tidy, also those that do nothing

	mu    sync.Mutex
	job   int64  // the last row of qsidecar_failures that was visited
	queue string // the last of qsidecar_keys
	key   []byte

	registered string          // the last row of qsidecar_queues
	idle       map[string]idle // rows of qsidecar_queues without scheduled jobs
}

// idle is a queue that had no scheduled job at each visit.
type idle struct {
	since   time.Time
	returns int64 // the same at each visit: no transaction has registered the queue
}

const (
	// idleQueue is how long a queue must be idle before its row is deleted. Each sidecar that schedules a
	// job in that time registers the queue (believedFor), and so changes the row.
	idleQueue = 24 * time.Hour
	maxIdle   = 100_000
)

// lineDays is after how many days the janitor deletes a line's row that was not refreshed: see joinEvery.
const lineDays = 30

// tidyEvery is the number of maintenance runs that prune, and so of calls of Tidy, per visit.
const tidyEvery = 12

// Tidy implements core.Tidier. Only every tidyEvery-th call visits the tables.
func (d access) Tidy(ctx context.Context, limit int) error {
	if d.janitor.visits.Add(1)%tidyEvery != 0 {
		return nil
	}
	return d.tidy(ctx, limit)
}

// tidy is one visit. It reads without locks and locks only what it changes. Ids are never used again, so
// what it found to be gone stays gone.
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
	jobs, names, lines := 0, 0, 0
	old := fmt.Sprintf("at < %s - INTERVAL %d DAY", s.sql.clock, lineDays)
	err := s.read(ctx, func(_ context.Context, t *tx) error {
		orphans, keys, jobs, names, lines = nil, nil, 0, 0, 0
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
		t.each(func(*result) error {
			lines++
			return nil
		}, "SELECT 1 FROM qsidecar_commits WHERE "+old+" LIMIT 1")
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.tidyQueues(ctx, limit, idleQueue); err != nil {
		return err
	}
	if jobs < limit {
		at.job = 0
	}
	if names < limit {
		at.queue, at.key = "", []byte{}
	}
	if len(orphans)+len(keys)+lines == 0 {
		return nil
	}
	return s.write(ctx, func(_ context.Context, t *tx) error {
		t.wrote = true
		for _, k := range keys {
			t.add("UPDATE qsidecar_keys SET state = 'deleted' WHERE queue = ? AND `key` = ? AND job = ? AND state IS NULL", k.queue, k.key, k.job)
		}
		if lines > 0 {
			t.add("DELETE FROM qsidecar_commits WHERE "+old+" LIMIT ?", limit)
		}
		if len(orphans) > 0 {
			t.add("DELETE FROM qsidecar_failures WHERE job IN (" + list(orphans) + ")")
		}
		return nil
	})
}

// tidyQueues deletes rows of qsidecar_queues whose queues have been idle for `long`. Maintenance scans the
// scheduled jobs of each queue in that table, and clients can create queue names without limit. The caller
// holds janitor.mu.
func (s *Store) tidyQueues(ctx context.Context, limit int, long time.Duration) error {
	at, now := &s.janitor, time.Now()
	if at.idle == nil {
		at.idle = map[string]idle{}
	}
	over := map[string]int64{}
	rows := 0
	if err := s.read(ctx, func(_ context.Context, t *tx) error {
		rows = 0
		t.each(func(r *result) error {
			rows++
			at.registered = r.text(0)
			x, known := at.idle[at.registered]
			switch {
			case r.int(2) != 0 || !r.null(3):
				delete(at.idle, at.registered)
			case known && x.returns == r.int(1) && now.Sub(x.since) >= long:
				over[at.registered] = x.returns
			case (!known || x.returns != r.int(1)) && (known || len(at.idle) < maxIdle):
				at.idle[at.registered] = idle{now, r.int(1)}
			}
			return nil
		}, "SELECT q.queue, q.returns, q.paused, (SELECT 1 FROM "+jobs+" WHERE lane = CONCAT('s', q.queue) LIMIT 1) FROM qsidecar_queues q WHERE q.queue > ? ORDER BY q.queue LIMIT ?",
			at.registered, limit)
		return nil
	}); err != nil {
		return err
	}
	if rows < limit {
		at.registered = ""
	}
	if len(over) == 0 {
		return nil
	}
	return s.write(ctx, func(_ context.Context, t *tx) error {
		t.wrote = true
		for _, q := range slices.Sorted(maps.Keys(over)) {
			t.add("DELETE FROM qsidecar_queues WHERE queue = ? AND returns = ? AND NOT paused", q, over[q])
			delete(at.idle, q)
		}
		return nil
	})
}
