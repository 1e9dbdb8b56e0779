package postgres

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

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
	var all []backends.QueueStats
	err := s.read(ctx, func(ctx context.Context, t *tx) error {
		queues := []string{queue}
		if queue == "" {
			queues = nil
			t.each(s.sql.queues, func(rows pgx.Rows) error {
				var q string
				err := rows.Scan(&q)
				queues = append(queues, q)
				return err
			})
			if err := t.send(ctx); err != nil {
				return err
			}
		}
		all = make([]backends.QueueStats, len(queues))
		for i, q := range queues {
			s.statsOf(t, q, &all[i])
		}
		if err := t.send(ctx); err != nil {
			return err
		}
		for i := range all {
			if err := s.estimate(ctx, t, &all[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func counts(st *backends.QueueStats) map[backends.State]*int64 {
	return map[backends.State]*int64{
		backends.StateReady: &st.Ready, backends.StateScheduled: &st.Scheduled, backends.StateClaimed: &st.Claimed,
		backends.StateDone: &st.Done, backends.StateDead: &st.Dead,
	}
}

func (s *Store) statsOf(t *tx, queue string, st *backends.QueueStats) {
	st.Queue = queue
	n := counts(st)
	t.each(s.sql.stats, func(rows pgx.Rows) error {
		var now time.Time
		var claimed, ready *time.Time
		to := []any{&now}
		for _, state := range states {
			to = append(to, n[state])
		}
		if err := rows.Scan(append(to, &st.Paused, &claimed, &ready)...); err != nil {
			return err
		}
		st.OldestReady, st.OldestClaimed = age(now, ready), age(now, claimed)
		return nil
	}, queue, backends.StatsExact+1)
}

// age of what happened at an instant; a millisecond at least, because 0 says that there is none.
func age(now time.Time, at *time.Time) time.Duration {
	if at == nil {
		return 0
	}
	return max(now.Sub(*at), time.Millisecond)
}

// estimate replaces the counts that reached the limit.
func (s *Store) estimate(ctx context.Context, t *tx, st *backends.QueueStats) error {
	for state, n := range counts(st) {
		if *n <= backends.StatsExact {
			continue
		}
		st.Approx = true
		if err := s.estimateOne(ctx, t, counted{st.Queue, state}, n); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) estimateOne(ctx context.Context, t *tx, c counted, n *int64) error {
	e := &s.counts
	e.mu.Lock()
	known, ok := e.of[c]
	e.mu.Unlock()
	if ok && time.Since(known.at) < estimateAge {
		*n = known.n
		return nil
	}
	at := time.Now()
	t.each(s.sql.count[c.state], func(rows pgx.Rows) error { return rows.Scan(n) }, c.queue, int64(math.MaxInt64))
	if err := t.send(ctx); err != nil {
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
