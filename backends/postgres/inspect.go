package postgres

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// Stats implements core.Reader.
func (t *tx) Stats(ctx context.Context, queues []string) (all []backends.QueueStats, err error) {
	if queues == nil {
		return t.statsOfAll(ctx)
	}
	all = make([]backends.QueueStats, len(queues))
	for i, q := range queues {
		t.statsOf(q, &all[i])
	}
	return all, t.send(ctx)
}

// statsOfAll counts all queues together, so a queue with few jobs costs almost nothing.
func (t *tx) statsOfAll(ctx context.Context) ([]backends.QueueStats, error) {
	var tally core.Tally
	t.each(t.s.sql.queuesPaused, func(rows pgx.Rows) error {
		var q string
		err := rows.Scan(&q)
		tally.Of(q).Paused = true
		return err
	})
	t.each(t.s.sql.queuesClaimed, func(rows pgx.Rows) error {
		var now time.Time
		var oldest *time.Time
		c := core.Counted{State: backends.StateClaimed}
		err := rows.Scan(&now, &c.Queue, &c.N, maybe{&oldest})
		c.Oldest = age(now, oldest)
		tally.Add(c)
		return err
	})
	for _, sql := range []string{t.s.sql.queuesReady, t.s.sql.queuesBlocked, t.s.sql.queuesScheduled, t.s.sql.queuesFinished} {
		if err := tally.Count(func(after core.Counted, limit int64) (page []core.Counted, err error) {
			args := []any{after.Queue, limit}
			if sql == t.s.sql.queuesFinished {
				args = append(args, string(after.State))
			}
			err = t.ask(ctx, sql, func(rows pgx.Rows) error {
				var c core.Counted
				err := rows.Scan(&c.Queue, &c.State, &c.N)
				page = append(page, c)
				return err
			}, args...)
			return page, err
		}); err != nil {
			return nil, err
		}
	}
	all, alone := tally.All()
	var ready []string
	index := make(map[string]int)
	for i, q := range all {
		index[q.Queue] = i
		if alone(q.Queue) {
			t.statsOf(q.Queue, &all[i])
		} else if q.Ready > 0 {
			ready = append(ready, q.Queue)
		}
	}
	err := t.ask(ctx, t.s.sql.oldestOf, func(rows pgx.Rows) error {
		var q string
		var now time.Time
		var oldest *time.Time
		err := rows.Scan(&q, &now, maybe{&oldest})
		all[index[q]].OldestReady = age(now, oldest)
		return err
	}, ready)
	return all, err
}

// statsOf queues the statement that counts one queue's jobs.
func (t *tx) statsOf(queue string, st *backends.QueueStats) {
	st.Queue = queue
	n := core.Counts(st)
	t.each(t.s.sql.stats, func(rows pgx.Rows) error {
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

// age returns how long ago at was, but at least a millisecond. It returns 0 if at is nil:
// 0 means that there is no such job.
func age(now time.Time, at *time.Time) time.Duration {
	if at == nil {
		return 0
	}
	return max(now.Sub(*at), time.Millisecond)
}

// listPlace is the position after which a listing of jobs continues.
type listPlace struct {
	spot  cursor.Spot
	group string
	id    int64
	at    pgtype.Timestamptz
}

var listStart = listPlace{spot: cursor.Beginning, at: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}}

// Place implements core.Reader.
func (t *tx) Place(ctx context.Context, p backends.Peek, id int64) (place any, found bool, err error) {
	from := listStart
	err = t.ask(ctx, t.s.sql.place, func(rows pgx.Rows) error {
		found = true
		var run, claimed, finished pgtype.Timestamptz
		if err := rows.Scan(&from.spot.Urgency, &from.spot.Position, &run, &claimed, &finished, &from.group); err != nil {
			return err
		}
		from.id = id
		at := map[backends.State]pgtype.Timestamptz{
			backends.StateScheduled: run, backends.StateClaimed: claimed, backends.StateDone: finished, backends.StateDead: finished,
		}[p.State]
		if at.Valid { // otherwise the job left the state
			from.at = at
		}
		return nil
	}, id, p.Queue)
	return from, found, err
}

// Sizes implements core.Reader.
func (t *tx) Sizes(ctx context.Context, p backends.Peek, ids []int64, after any, each func(id, bytes int64)) error {
	from, ok := after.(listPlace)
	if !ok {
		from = listStart
	}
	sql, args := t.s.sql.chosen, []any{ids, p.Queue}
	if ids == nil {
		switch p.State {
		case backends.StateReady:
			sql, args = t.s.sql.peekReady, []any{p.Queue, from.spot.Urgency, from.spot.Position, p.Max}
		case backends.StateBlocked:
			sql, args = t.s.sql.peekBlocked, []any{p.Queue, from.group, from.spot.Urgency, from.spot.Position, p.Max}
		case backends.StateScheduled:
			sql, args = t.s.sql.peekScheduled, []any{p.Queue, from.at, from.id, p.Max}
		case backends.StateClaimed:
			sql, args = t.s.sql.peekClaimed, []any{p.Queue, from.at, from.id, p.Max}
		default:
			sql, args = t.s.sql.peekDone, []any{p.Queue, from.at, from.id, p.Max, string(p.State)}
			if p.Newest {
				sql = t.s.sql.peekNewest
				if from.at == listStart.at {
					args[1] = pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
				}
			}
		}
	}
	return t.ask(ctx, sql, func(rows pgx.Rows) error {
		var id, bytes int64
		err := rows.Scan(&id, &bytes)
		each(id, bytes)
		return err
	}, args...)
}

// KeyHolder implements core.Reader.
func (t *tx) KeyHolder(ctx context.Context, queue, key string) (id int64, found bool, err error) {
	err = t.ask(ctx, t.s.sql.keyHolder, func(rows pgx.Rows) error {
		found = true
		return rows.Scan(&id)
	}, queue, key)
	return id, found, err
}

// Views implements core.Reader.
func (t *tx) Views(ctx context.Context, queue string, ids []int64) (views []backends.View, err error) {
	index := map[int64]int{}
	t.each(t.s.sql.view, func(rows pgx.Rows) error {
		id, v, err := scanView(rows)
		if err != nil {
			return fmt.Errorf("qsidecar_jobs row %d: %w", id, err)
		}
		index[id] = len(views)
		views = append(views, v)
		return nil
	}, ids, queue)
	err = t.ask(ctx, t.s.sql.failures, func(rows pgx.Rows) error {
		var job int64
		var f backends.Failure
		if err := rows.Scan(&job, &f.Attempt, (*string)(&f.Cause), &f.Message, instant{&f.At}); err != nil {
			return err
		}
		f.At = f.At.UTC()
		if i, ok := index[job]; ok {
			views[i].Failures = append(views[i].Failures, f)
		}
		return nil
	}, ids)
	return views, err
}

func scanView(rows pgx.Rows) (id int64, v backends.View, err error) {
	var run, claimed, finished, before *time.Time
	var headers, worker string
	var progress int16
	err = rows.Scan(&id, &v.Queue, (*string)(&v.State), &v.Payload, &v.Priority, &v.Attempt, &v.MaxAttempts, instant{&v.EnqueuedAt},
		maybe{&run}, maybe{&claimed}, maybe{&finished}, &worker, &v.Key, &headers, &v.Result, &v.Group, &progress, maybe{&before})
	if err != nil {
		return id, v, err
	}
	v.ID, v.EnqueuedAt, v.HasProgress = core.ID(id), v.EnqueuedAt.UTC(), progress != 0
	if before != nil {
		v.StartBefore = before.UTC()
	}
	if finished != nil {
		v.FinishedAt = finished.UTC()
	}
	switch {
	case v.State == backends.StateScheduled && run != nil:
		v.RunAt = run.UTC()
	case v.State == backends.StateClaimed && claimed != nil:
		v.ClaimedAt, v.Worker = claimed.UTC(), worker
	}
	v.Headers = core.ReadHeaders(headers)
	return id, v, nil
}

// ClaimedBy implements core.Reader.
func (t *tx) ClaimedBy(ctx context.Context, owner backends.Identity, after int64, limit int) (all []backends.ClaimedJob, err error) {
	err = t.ask(ctx, t.s.sql.claimedBy, func(rows pgx.Rows) error {
		var j backends.ClaimedJob
		var id, host, number int64
		if err := rows.Scan(&id, &host, &number, &j.Queue, &j.Timed); err != nil {
			return err
		}
		j.Lease = backends.Lease{Job: core.ID(id), Token: backends.Token{Sidecar: backends.Identity(host), Number: uint64(number)}}
		all = append(all, j)
		return nil
	}, int64(owner), after, limit)
	return all, err
}

// Count implements core.Reader.
func (t *tx) Count(ctx context.Context, queue string, state backends.State) (n int64, err error) {
	err = t.ask(ctx, t.s.sql.count[state], func(rows pgx.Rows) error { return rows.Scan(&n) }, queue, int64(math.MaxInt64))
	return n, err
}

// Hours implements core.Reader.
func (t *tx) Hours(ctx context.Context, queue string) (all []backends.HourTotals, err error) {
	err = t.ask(ctx, t.s.sql.hours, func(rows pgx.Rows) error {
		var h backends.HourTotals
		err := rows.Scan(core.HourColumns(&h)...)
		all = append(all, h)
		return err
	}, queue)
	return all, err
}

// Cancelled implements core.Reader.
func (t *tx) Cancelled(ctx context.Context, owner backends.Identity) (claims []backends.Token, err error) {
	err = t.ask(ctx, t.s.sql.cancelled, func(rows pgx.Rows) error {
		var sidecar, number int64
		err := rows.Scan(&sidecar, &number)
		claims = append(claims, backends.Token{Sidecar: backends.Identity(sidecar), Number: uint64(number)})
		return err
	}, int64(owner))
	return claims, err
}
