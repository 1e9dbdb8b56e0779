package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
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
		if err := s.counts.Fill(&all[i], func(state backends.State) (int64, error) { return s.count(ctx, all[i].Queue, state) }); err != nil {
			return nil, err
		}
	}
	return all, nil
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

// count counts all jobs of a queue in a state.
func (s *Store) count(ctx context.Context, queue string, state backends.State) (n int64, err error) {
	p, ok := s.sql.count[state]
	if !ok {
		return 0, fmt.Errorf("no job is ever %q", state)
	}
	err = s.read(ctx, call{p, []any{queue}, []reader{one(&n)}})
	return n, err
}
