package mysql

import (
	"context"
	"math"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

type estimates = batch.Estimates

// laneOf is the letter of a state's lanes.
var laneOf = map[backends.State]string{
	backends.StateReady: "r", backends.StateScheduled: "s", backends.StateClaimed: "c", backends.StateDone: "d", backends.StateDead: "x",
}

// Stats implements backends.Inspector.
func (s *Store) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	var all []backends.QueueStats
	err := s.read(ctx, func(ctx context.Context, t *tx) (err error) {
		alone := func(string) bool { return true }
		if queue == "" {
			if all, alone, err = t.statsOfAll(ctx); err != nil {
				return err
			}
		} else {
			all = []backends.QueueStats{{Queue: queue}}
		}
		for i := range all {
			if !alone(all[i].Queue) {
				continue
			}
			t.statsOf(all[i].Queue, &all[i])
			if err := t.roomy(ctx, 1<<20); err != nil {
				return err
			}
		}
		if err := t.send(ctx); err != nil {
			return err
		}
		for i := range all {
			if alone(all[i].Queue) {
				if err := t.oldest(ctx, &all[i]); err != nil {
					return err
				}
			}
			if err := s.counts.Fill(&all[i], func(state backends.State) (int64, error) { return t.count(ctx, all[i].Queue, state) }); err != nil {
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

// statsOfAll counts all queues together, so that one with few jobs costs next to nothing. Those that
// are to be asked for alone are not complete.
func (t *tx) statsOfAll(ctx context.Context) (all []backends.QueueStats, alone func(queue string) bool, err error) {
	var tally batch.Tally
	t.each(func(r *result) error {
		tally.Of(r.text(0)).Paused = true
		return nil
	}, "SELECT queue FROM qsidecar_queues WHERE paused")
	t.each(func(r *result) error {
		tally.Add(batch.Counted{Queue: r.text(0), State: backends.StateClaimed, N: r.int(1), Oldest: age(r.instant(3), r.instant(2))})
		return nil
	}, "SELECT queue, COUNT(*), MIN(claimed_at), "+t.s.sql.clock+" FROM "+jobs+" WHERE lane > 'c' AND lane < 'd' GROUP BY queue")
	for _, state := range []backends.State{backends.StateReady, backends.StateScheduled, backends.StateDone, backends.StateDead} {
		letter := laneOf[state]
		if err := tally.Count(func(after batch.Counted, limit int64) (all []batch.Counted, err error) {
			t.each(func(r *result) error {
				c := batch.Counted{Queue: r.text(0)[1:], State: state, N: r.int(1)}
				if state == backends.StateReady {
					c.Oldest = age(r.instant(3), r.instant(2))
				}
				all = append(all, c)
				return nil
			}, lanesSQL(state, t.s.sql.clock), letter+after.Queue, string(letter[0]+1), limit)
			err = t.send(ctx)
			return all, err
		}); err != nil {
			return nil, nil, err
		}
	}
	all, alone = tally.All()
	return all, alone, nil
}

// lanesSQL counts the rows of all lanes that are behind one, a limited number of them, by urgency.
// Inside one, positions are given in the order in which rows become ready.
func lanesSQL(state backends.State, clock string) string {
	first := "NULL"
	if state == backends.StateReady {
		first = "(SELECT j.ready_at FROM qsidecar_jobs AS j FORCE INDEX (qsidecar_lanes) WHERE j.lane = g.lane AND j.urgency = g.urgency ORDER BY j.place, j.id LIMIT 1)"
	}
	return "SELECT g.lane, g.n, " + first + ", " + clock + " FROM (SELECT p.lane, p.urgency, COUNT(*) AS n FROM (SELECT lane, urgency FROM " + jobs +
		" WHERE lane > ? AND lane < ? ORDER BY lane, urgency LIMIT ?) AS p GROUP BY p.lane, p.urgency) AS g ORDER BY g.lane, g.urgency"
}

// counting is the statement that counts the rows of a queue in a state, up to a limit.
func counting(state backends.State, queue string, limit int64) (sql string, args []any) {
	if state == backends.StateClaimed {
		return "SELECT COUNT(*) FROM (SELECT 1 FROM " + jobs + " WHERE lane > 'c' AND lane < 'd' AND queue = ? LIMIT ?) AS x", []any{queue, limit}
	}
	return "SELECT COUNT(*) FROM (SELECT 1 FROM " + jobs + " WHERE lane = ? LIMIT ?) AS x", []any{laneOf[state] + queue, limit}
}

func (t *tx) count(ctx context.Context, queue string, state backends.State) (n int64, err error) {
	sql, args := counting(state, queue, math.MaxInt64)
	t.each(func(r *result) error {
		n = r.int(0)
		return nil
	}, sql, args...)
	err = t.send(ctx)
	return n, err
}

// statsOf queues what is asked about one queue, as one statement.
func (t *tx) statsOf(queue string, st *backends.QueueStats) {
	st.Queue = queue
	n := batch.Counts(st)
	states := []backends.State{backends.StateReady, backends.StateScheduled, backends.StateClaimed, backends.StateDone, backends.StateDead}
	var sql strings.Builder
	var args []any
	for _, state := range states {
		count, more := counting(state, queue, backends.StatsExact+1)
		sql.WriteString("(" + count + "), ")
		args = append(args, more...)
	}
	args = append(args, queue, queue)
	t.each(func(r *result) error {
		for i, state := range states {
			*n[state] = r.int(i)
		}
		st.Paused = r.int(5) != 0
		st.OldestClaimed = age(r.instant(7), r.instant(6))
		return nil
	}, "SELECT "+sql.String()+"EXISTS (SELECT 1 FROM qsidecar_queues WHERE queue = ? AND paused), "+
		"(SELECT MIN(claimed_at) FROM "+jobs+" WHERE lane > 'c' AND lane < 'd' AND queue = ?), "+t.s.sql.clock, args...)
}

// oldest looks at the first row of each priority: inside one, positions are given
// in the order in which rows become ready.
func (t *tx) oldest(ctx context.Context, st *backends.QueueStats) error {
	if st.Ready == 0 {
		return nil
	}
	for urgency, more := int64(math.MinInt32), true; more; {
		more = false
		t.each(func(r *result) error {
			urgency, more = r.int(0), true
			st.OldestReady = max(st.OldestReady, age(r.instant(2), r.instant(1)))
			return nil
		}, "SELECT urgency, ready_at, "+t.s.sql.clock+" FROM "+jobs+" WHERE lane = ? AND urgency > ? ORDER BY urgency, place, id LIMIT 1", "r"+st.Queue, urgency)
		if err := t.send(ctx); err != nil {
			return err
		}
	}
	return nil
}

// age of what happened at an instant; a millisecond at least, because 0 says that there is none.
func age(now, at instant) time.Duration {
	if at == 0 {
		return 0
	}
	return max(time.Duration(now-at)*time.Microsecond, time.Millisecond)
}
