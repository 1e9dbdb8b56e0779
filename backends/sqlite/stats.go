package sqlite

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// estimates are counts above backends.StatsExact, which cost a walk through an
// index and are therefore asked for at most every ten seconds.
type estimates struct {
	mu sync.Mutex
	of map[[2]string]estimate // by queue and statement
}

type estimate struct {
	n  int64
	at time.Time
}

const estimateAge = 10 * time.Second

// Stats implements backends.Inspector.
func (s *Store) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	var all []backends.QueueStats
	err := s.reading(ctx, func(t *tx) (err error) {
		if queue == "" {
			all, err = s.statsOfAll(t)
			return err
		}
		all = make([]backends.QueueStats, 1)
		all[0], err = s.statsOf(t, queue)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// statsOfAll counts all queues together, so that one with few jobs costs next to nothing.
func (s *Store) statsOfAll(t *tx) ([]backends.QueueStats, error) {
	var tally batch.Tally
	if err := t.query(t.sql.queuesPaused, func(r row) error {
		tally.Of(r.text(0)).Paused = true
		return nil
	}); err != nil {
		return nil, err
	}
	for state, sql := range map[backends.State]string{
		backends.StateReady: t.sql.queuesReady, backends.StateScheduled: t.sql.queuesScheduled, backends.StateClaimed: t.sql.queuesClaimed,
		backends.StateDone: t.sql.queuesFinished, // and dead ones
	} {
		if err := tally.Count(func(after batch.Counted, limit int64) (all []batch.Counted, err error) {
			args := []any{after.Queue, limit}
			if state == backends.StateDone {
				args = []any{after.Queue, string(after.State), limit}
			}
			err = t.query(sql, func(r row) error {
				c := batch.Counted{Queue: r.text(0), State: backends.State(r.text(1)), N: r.int(2)}
				if !r.null(3) {
					c.Oldest = t.age(r.int(3))
				}
				all = append(all, c)
				return nil
			}, args...)
			return all, err
		}); err != nil {
			return nil, err
		}
	}
	all, alone := tally.All()
	for i, q := range all {
		if !alone(q.Queue) && max(q.Ready, q.Scheduled, q.Claimed, q.Done, q.Dead) <= backends.StatsExact {
			continue
		}
		var err error
		if all[i], err = s.statsOf(t, q.Queue); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (s *Store) statsOf(t *tx, queue string) (backends.QueueStats, error) {
	st := backends.QueueStats{Queue: queue}
	for _, c := range []struct {
		sql string
		to  *int64
	}{
		{t.sql.countReady, &st.Ready}, {t.sql.countScheduled, &st.Scheduled}, {t.sql.countClaimed, &st.Claimed},
		{t.sql.countDone, &st.Done}, {t.sql.countDead, &st.Dead},
	} {
		n, approx, err := s.count(t, c.sql, queue)
		if err != nil {
			return st, err
		}
		*c.to, st.Approx = n, st.Approx || approx
	}
	var err error
	if st.Paused, err = t.exists(t.sql.paused, queue); err != nil {
		return st, err
	}
	if st.OldestReady, err = t.oldestReady(queue); err != nil {
		return st, err
	}
	return st, t.query(t.sql.oldestClaimed, func(r row) error {
		st.OldestClaimed = t.age(r.int(0))
		return nil
	}, queue)
}

// count is exact up to backends.StatsExact, and then an estimate.
func (s *Store) count(t *tx, sql, queue string) (n int64, approx bool, err error) {
	ask := func(limit int64) error {
		return t.query(sql, func(r row) error {
			n = r.int(0)
			return nil
		}, queue, limit)
	}
	if err := ask(backends.StatsExact + 1); err != nil || n <= backends.StatsExact {
		return n, false, err
	}
	e := &s.counts
	of := [2]string{queue, sql}
	e.mu.Lock()
	known, ok := e.of[of]
	e.mu.Unlock()
	if ok && time.Since(known.at) < estimateAge {
		return known.n, true, nil
	}
	at := time.Now()
	if err := ask(math.MaxInt64); err != nil {
		return 0, false, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of == nil {
		e.of = map[[2]string]estimate{}
	}
	e.of[of] = estimate{n: n, at: at}
	return n, true, nil
}

// oldestReady looks at the first row of each priority: inside one, positions are
// given in the order in which rows become ready.
func (t *tx) oldestReady(queue string) (oldest time.Duration, err error) {
	for below, found := int64(math.MaxInt64), true; found; {
		found = false
		if err := t.query(t.sql.nextPrio, func(r row) error {
			below, found = r.int(0), true
			return nil
		}, queue, below); err != nil {
			return 0, err
		}
		if !found {
			break
		}
		if err := t.query(t.sql.oldestReady, func(r row) error {
			oldest = max(oldest, t.age(r.int(0)))
			return nil
		}, queue, below); err != nil {
			return 0, err
		}
	}
	return oldest, nil
}

// age of what happened at an instant in ms; a millisecond at least, because 0 says that there is none.
func (t *tx) age(at int64) time.Duration {
	return time.Duration(max(t.now-at, 1)) * time.Millisecond
}
