package postgres

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
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

func (s *Store) statsOf(t *tx, queue string, st *backends.QueueStats) {
	st.Queue = queue
	n := batch.Counts(st)
	t.each(s.sql.stats, func(rows pgx.Rows) error {
		var now time.Time
		var claimed, ready *time.Time
		to := []any{&now}
		for _, state := range states {
			to = append(to, n[state])
		}
		if err := rows.Scan(append(to, &st.Paused, maybe{&claimed}, maybe{&ready})...); err != nil {
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
	return s.counts.Fill(st, func(state backends.State) (n int64, err error) {
		t.each(s.sql.count[state], func(rows pgx.Rows) error { return rows.Scan(&n) }, st.Queue, int64(math.MaxInt64))
		err = t.send(ctx)
		return n, err
	})
}
