package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// estimates are counts above backends.StatsExact, which cost a walk through an
// index and are therefore asked for at most every ten seconds.
type estimates struct {
	mu sync.Mutex
	of map[counted]estimate
}

type counted struct {
	queue string
	state backends.State
}

type estimate struct {
	n  int64
	at time.Time
}

const (
	estimateAge  = 10 * time.Second
	maxEstimates = 10_000
)

// Stats implements backends.Inspector.
func (s *Store) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	queues := []string{queue}
	if queue == "" {
		if err := s.read(ctx, call{s.sql.queues, nil, []reader{func(rows *sql.Rows) error {
			queues = nil
			return each(func(rows *sql.Rows) error {
				var q string
				err := rows.Scan(&q)
				queues = append(queues, q)
				return err
			})(rows)
		}}}); err != nil {
			return nil, err
		}
		slices.Sort(queues)
	}
	all := make([]backends.QueueStats, len(queues))
	for from := 0; from < len(queues); from += most {
		if err := s.statsOf(ctx, queues[from:min(from+most, len(queues))], all[from:]); err != nil {
			return nil, err
		}
	}
	for i := range all {
		if err := s.estimate(ctx, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func counts(st *backends.QueueStats) map[backends.State]*int64 {
	return map[backends.State]*int64{
		backends.StateReady: &st.Ready, backends.StateScheduled: &st.Scheduled, backends.StateClaimed: &st.Claimed,
		backends.StateDone: &st.Done, backends.StateDead: &st.Dead,
	}
}

func (s *Store) statsOf(ctx context.Context, queues []string, all []backends.QueueStats) error {
	return s.read(ctx, call{s.sql.stats, []any{listOf(queues), int64(backends.StatsExact + 1)}, []reader{each(func(rows *sql.Rows) error {
		var n int
		var st backends.QueueStats
		var now time.Time
		var claimed, ready sql.NullTime
		if err := rows.Scan(&n, &now, &st.Ready, &st.Scheduled, &st.Claimed, &st.Done, &st.Dead, &st.Paused, &claimed, &ready); err != nil {
			return err
		}
		if n < 0 || n >= len(queues) {
			return fmt.Errorf("sqlserver: the answer names queue %d of %d", n, len(queues))
		}
		st.Queue, st.OldestReady, st.OldestClaimed = queues[n], age(now, ready), age(now, claimed)
		all[n] = st
		return nil
	})}})
}

// age of what happened at an instant; a millisecond at least, because 0 says that there is none.
func age(now time.Time, at sql.NullTime) time.Duration {
	if !at.Valid {
		return 0
	}
	return max(now.Sub(at.Time), time.Millisecond)
}

// estimate replaces the counts that reached the limit.
func (s *Store) estimate(ctx context.Context, st *backends.QueueStats) error {
	for state, n := range counts(st) {
		if *n <= backends.StatsExact {
			continue
		}
		st.Approx = true
		if err := s.estimateOne(ctx, counted{st.Queue, state}, n); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) estimateOne(ctx context.Context, c counted, n *int64) error {
	e := &s.counts
	e.mu.Lock()
	known, ok := e.of[c]
	e.mu.Unlock()
	if ok && time.Since(known.at) < estimateAge {
		*n = known.n
		return nil
	}
	at := time.Now()
	if err := s.count(ctx, c, n); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of == nil || len(e.of) >= maxEstimates {
		e.of = map[counted]estimate{}
	}
	e.of[c] = estimate{n: *n, at: at}
	return nil
}

// count counts all jobs of a queue in a state.
func (s *Store) count(ctx context.Context, c counted, n *int64) error {
	p, ok := s.sql.count[c.state]
	if !ok {
		return fmt.Errorf("no job is ever %q", c.state)
	}
	return s.read(ctx, call{p, []any{c.queue}, []reader{one(n)}})
}
