package sqlite

import (
	"context"
	"math"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Stats implements core.Reader.
func (t *tx) Stats(_ context.Context, queues []string) (all []backends.QueueStats, err error) {
	if queues == nil {
		return t.statsOfAll()
	}
	for _, q := range queues {
		st, err := t.statsOf(q)
		if err != nil {
			return nil, err
		}
		all = append(all, st)
	}
	return all, nil
}

// statsOfAll counts all queues together, so a queue with few jobs costs almost nothing.
func (t *tx) statsOfAll() ([]backends.QueueStats, error) {
	var tally core.Tally
	if err := t.query(t.sql.queuesPaused, func(r row) error {
		tally.Of(r.text(0)).Paused = true
		return nil
	}); err != nil {
		return nil, err
	}
	for state, sql := range map[backends.State]string{
		backends.StateReady: t.sql.queuesReady, backends.StateBlocked: t.sql.queuesBlocked, backends.StateScheduled: t.sql.queuesScheduled, backends.StateClaimed: t.sql.queuesClaimed,
		backends.StateDone: t.sql.queuesFinished, // and dead jobs
	} {
		if err := tally.Count(func(after core.Counted, limit int64) (all []core.Counted, err error) {
			args := []any{after.Queue, limit}
			if state == backends.StateDone {
				args = []any{after.Queue, string(after.State), limit}
			}
			err = t.query(sql, func(r row) error {
				c := core.Counted{Queue: r.text(0), State: backends.State(r.text(1)), N: r.int(2)}
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
		if !alone(q.Queue) && max(q.Ready, q.Blocked, q.Scheduled, q.Claimed, q.Done, q.Dead) <= backends.StatsExact {
			continue
		}
		var err error
		if all[i], err = t.statsOf(q.Queue); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (t *tx) statsOf(queue string) (backends.QueueStats, error) {
	st := backends.QueueStats{Queue: queue}
	var err error
	for state, n := range core.Counts(&st) {
		if *n, err = t.count(queue, state, backends.StatsExact+1); err != nil {
			return st, err
		}
	}
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

// oldestReady reads the first row of each priority. Within a priority, positions increase
// in the order in which rows become ready.
func (t *tx) oldestReady(queue string) (oldest time.Duration, err error) {
	for below, found := int64(math.MaxInt64), true; found; {
		found = false
		if err := t.query(t.sql.nextPriority, func(r row) error {
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

// age returns how long ago at (in ms) was, but at least a millisecond: 0 means that there is no such job.
func (t *tx) age(at int64) time.Duration {
	return time.Duration(max(t.now-at, 1)) * time.Millisecond
}

// listPlace is the position after which a listing of jobs continues.
type listPlace struct {
	id, priority, position, at int64
	group                      string
	begin                      bool // whether the listing starts at the beginning
}

var listStart = listPlace{begin: true, at: math.MinInt64}

// Place implements core.Reader.
func (t *tx) Place(_ context.Context, p backends.Peek, id int64) (place any, found bool, err error) {
	var from listPlace
	column := map[backends.State]int{backends.StateScheduled: 2, backends.StateClaimed: 3, backends.StateDone: 4, backends.StateDead: 4}[p.State]
	err = t.query(t.sql.place, func(r row) error {
		found = true
		from = listPlace{id: id, priority: r.int(0), position: r.int(1), at: r.int(column), group: r.text(5)}
		return nil
	}, id, p.Queue)
	return from, found, err
}

// following returns up to limit ids of a queue's jobs in a state, after the position from.
func (t *tx) following(queue string, state backends.State, from listPlace, limit int) (ids []int64, err error) {
	add := func(r row) error {
		ids = append(ids, r.int(0))
		return nil
	}
	switch state {
	case backends.StateReady:
		below := from.priority
		if from.begin {
			below = math.MaxInt64
		} else if err := t.query(t.sql.peekSamePriority, add, queue, from.priority, from.position, limit); err != nil {
			return nil, err
		}
		if len(ids) < limit {
			err = t.query(t.sql.peekReady, add, queue, below, limit-len(ids))
		}
	case backends.StateBlocked:
		if !from.begin {
			if err := t.query(t.sql.peekBlockedSame, add, queue, from.group, from.priority, from.position, limit); err != nil {
				return nil, err
			}
			if err := t.query(t.sql.peekBlockedGroup, add, queue, from.group, from.priority, limit-len(ids)); err != nil {
				return nil, err
			}
		}
		err = t.query(t.sql.peekBlocked, add, queue, from.group, limit-len(ids))
	case backends.StateScheduled:
		err = t.query(t.sql.peekScheduled, add, queue, from.at, from.id, limit)
	case backends.StateClaimed:
		err = t.query(t.sql.peekClaimed, add, queue, from.at, from.id, limit)
	case backends.StateDone:
		err = t.query(t.sql.peekDone, add, queue, from.at, from.id, limit)
	default:
		err = t.query(t.sql.peekDead, add, queue, from.at, from.id, limit)
	}
	return ids, err
}

// preceding returns up to limit ids of a queue's done or dead jobs before the position from, the newest first.
func (t *tx) preceding(queue string, state backends.State, from listPlace, limit int) (ids []int64, err error) {
	if from.at <= 0 { // the start, or a job that has left the state
		from.at = math.MaxInt64
	}
	sql := t.sql.newestDead
	if state == backends.StateDone {
		sql = t.sql.newestDone
	}
	err = t.query(sql, func(r row) error {
		ids = append(ids, r.int(0))
		return nil
	}, queue, from.at, from.id, limit)
	return ids, err
}

// Sizes implements core.Reader.
func (t *tx) Sizes(_ context.Context, p backends.Peek, ids []int64, after any, each func(id, bytes int64)) (err error) {
	if ids == nil {
		from, ok := after.(listPlace)
		if !ok {
			from = listStart
		}
		if p.Newest {
			ids, err = t.preceding(p.Queue, p.State, from, p.Max)
		} else {
			ids, err = t.following(p.Queue, p.State, from, p.Max)
		}
		if err != nil {
			return err
		}
	}
	for _, id := range ids {
		if err := t.query(t.sql.size, func(r row) error {
			each(id, r.int(0))
			return nil
		}, id, p.Queue); err != nil {
			return err
		}
	}
	return nil
}

// KeyHolder implements core.Reader.
func (t *tx) KeyHolder(_ context.Context, queue, key string) (id int64, found bool, err error) {
	err = t.query(t.sql.findKey, func(r row) error {
		id, found = r.int(0), true
		return nil
	}, queue, key)
	return id, found, err
}

// Views implements core.Reader.
func (t *tx) Views(_ context.Context, _ string, ids []int64) (views []backends.View, err error) {
	for _, id := range ids {
		v, err := t.view(id)
		if err != nil {
			return nil, err
		}
		if v != nil {
			views = append(views, *v)
		}
	}
	return views, nil
}

func (t *tx) view(id int64) (v *backends.View, err error) {
	failed := false
	err = t.query(t.sql.view, func(r row) error {
		v = &backends.View{
			ID: core.ID(id), Queue: r.text(0), State: backends.State(r.text(1)), Payload: r.bytes(2),
			Priority: int16(r.int(3)), Attempt: int(r.int(4)), MaxAttempts: int(r.int(5)), EnqueuedAt: r.time(6),
			FinishedAt: r.time(9), Key: r.text(11), Headers: core.ReadHeaders(r.text(12)), Result: r.bytes(13), Group: r.text(15), HasProgress: !r.null(16),
		}
		switch v.State {
		case backends.StateScheduled:
			v.RunAt = r.time(7)
		case backends.StateClaimed:
			v.ClaimedAt, v.Worker = r.time(8), r.text(10)
		}
		if !r.null(17) {
			v.StartBefore = r.time(17)
		}
		failed = !r.null(14)
		return nil
	}, id)
	if err != nil || !failed {
		return v, err
	}
	return v, t.query(t.sql.failures, func(r row) error {
		v.Failures = append(v.Failures, backends.Failure{
			Attempt: int(r.int(0)), Cause: backends.Cause(r.text(1)), Message: r.text(2), At: r.time(3),
		})
		return nil
	}, id)
}

// ClaimedBy implements core.Reader.
func (t *tx) ClaimedBy(_ context.Context, owner backends.Identity, after int64, limit int) (all []backends.ClaimedJob, err error) {
	err = t.query(t.sql.held, func(r row) error {
		all = append(all, backends.ClaimedJob{
			Lease: backends.Lease{Job: core.ID(r.int(0)), Token: backends.Token{Sidecar: backends.Identity(r.int(1)), Number: uint64(r.int(2))}},
			Queue: r.text(3),
			Timed: !r.null(4),
		})
		return nil
	}, int64(owner), after, limit)
	return all, err
}

// Count implements core.Reader.
func (t *tx) Count(_ context.Context, queue string, state backends.State) (int64, error) {
	return t.count(queue, state, math.MaxInt64)
}

// count counts a queue's jobs in a state, up to a limit.
func (t *tx) count(queue string, state backends.State, limit int64) (n int64, err error) {
	sql := map[backends.State]string{
		backends.StateReady: t.sql.countReady, backends.StateBlocked: t.sql.countBlocked, backends.StateScheduled: t.sql.countScheduled, backends.StateClaimed: t.sql.countClaimed,
		backends.StateDone: t.sql.countDone, backends.StateDead: t.sql.countDead,
	}[state]
	err = t.query(sql, func(r row) error {
		n = r.int(0)
		return nil
	}, queue, limit)
	return n, err
}

// Hours implements core.Reader.
func (t *tx) Hours(_ context.Context, queue string) (all []backends.HourTotals, err error) {
	err = t.query(t.sql.hours, func(r row) error {
		all = append(all, core.HourOf(r.text(1), func(column int) int64 { return r.int(column) }))
		return nil
	}, queue)
	return all, err
}

// Cancelled implements core.Reader.
func (t *tx) Cancelled(_ context.Context, owner backends.Identity) (claims []backends.Token, err error) {
	err = t.query(t.sql.cancelled, func(r row) error {
		claims = append(claims, backends.Token{Sidecar: backends.Identity(r.int(0)), Number: uint64(r.int(1))})
		return nil
	}, int64(owner))
	return claims, err
}
