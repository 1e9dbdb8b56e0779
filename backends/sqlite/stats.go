package sqlite

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
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
		queues := []string{queue}
		if queue == "" {
			if queues, err = t.queues(); err != nil {
				return err
			}
		}
		for _, q := range queues {
			st, err := s.statsOf(t, q)
			if err != nil {
				return err
			}
			all = append(all, st)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// queues steps through the names, of whom there are few, not through the rows.
func (t *tx) queues() (names []string, err error) {
	for _, sql := range []string{t.sql.queuesReady, t.sql.queuesScheduled, t.sql.queuesClaimed, t.sql.queuesFinished, t.sql.queuesPaused} {
		last, more := "", true
		for more {
			more = false
			if err := t.query(sql, func(r row) error {
				last, more = r.text(0), true
				return nil
			}, last); err != nil {
				return nil, err
			}
			if more {
				names = append(names, last)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
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
