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
	err := s.read(ctx, func(ctx context.Context, t *tx) (err error) {
		if queue == "" {
			if all, err = s.statsOfAll(ctx, t); err != nil {
				return err
			}
		} else {
			all = make([]backends.QueueStats, 1)
			s.statsOf(t, queue, &all[0])
			if err := t.send(ctx); err != nil {
				return err
			}
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

// statsOfAll counts all queues together, so that one with few jobs costs next to nothing.
func (s *Store) statsOfAll(ctx context.Context, t *tx) ([]backends.QueueStats, error) {
	var tally batch.Tally
	t.each(s.sql.queuesPaused, func(rows pgx.Rows) error {
		var q string
		err := rows.Scan(&q)
		tally.Of(q).Paused = true
		return err
	})
	t.each(s.sql.queuesClaimed, func(rows pgx.Rows) error {
		var now time.Time
		var oldest *time.Time
		c := batch.Counted{State: backends.StateClaimed}
		err := rows.Scan(&now, &c.Queue, &c.N, maybe{&oldest})
		c.Oldest = age(now, oldest)
		tally.Add(c)
		return err
	})
	page := func(sql string, args ...any) (all []batch.Counted, err error) {
		t.each(sql, func(rows pgx.Rows) error {
			var c batch.Counted
			err := rows.Scan(&c.Queue, &c.State, &c.N)
			all = append(all, c)
			return err
		}, args...)
		err = t.send(ctx)
		return all, err
	}
	for _, sql := range []string{s.sql.queuesReady, s.sql.queuesScheduled} {
		if err := tally.Count(func(after batch.Counted, limit int64) ([]batch.Counted, error) { return page(sql, after.Queue, limit) }); err != nil {
			return nil, err
		}
	}
	if err := tally.Count(func(after batch.Counted, limit int64) ([]batch.Counted, error) {
		return page(s.sql.queuesFinished, after.Queue, limit, string(after.State))
	}); err != nil {
		return nil, err
	}
	all, alone := tally.All()
	var ready []string
	place := make(map[string]int)
	for i, q := range all {
		place[q.Queue] = i
		if alone(q.Queue) {
			s.statsOf(t, q.Queue, &all[i])
		} else if q.Ready > 0 {
			ready = append(ready, q.Queue)
		}
	}
	t.each(s.sql.oldestOf, func(rows pgx.Rows) error {
		var q string
		var now time.Time
		var oldest *time.Time
		err := rows.Scan(&q, &now, maybe{&oldest})
		all[place[q]].OldestReady = age(now, oldest)
		return err
	}, ready)
	return all, t.send(ctx)
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
