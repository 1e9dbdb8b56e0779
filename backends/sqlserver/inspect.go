package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// inspection queries a Store. It implements core.Reader.
type inspection struct{ *Store }

// Count implements core.Reader.
func (q inspection) Count(ctx context.Context, queue string, state backends.State) (n int64, err error) {
	err = q.once(ctx, call{q.sql.count[state], []any{queue}, []reader{one(&n)}})
	return n, err
}

// Stats implements core.Reader.
func (q inspection) Stats(ctx context.Context, queues []string) ([]backends.QueueStats, error) {
	if queues == nil {
		if err := q.once(ctx, call{q.sql.queues, nil, []reader{each(func(rows *sql.Rows) error {
			var name string
			err := rows.Scan(&name)
			queues = append(queues, name)
			return err
		})}}); err != nil {
			return nil, err
		}
		slices.Sort(queues)
	}
	all := make([]backends.QueueStats, len(queues))
	for from := 0; from < len(queues); from += maxRows {
		to := min(from+maxRows, len(queues))
		if err := q.statsOf(ctx, queues[from:to], all[from:to]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (q inspection) statsOf(ctx context.Context, queues []string, all []backends.QueueStats) error {
	return q.once(ctx, call{q.sql.stats, []any{listOf(queues), int64(backends.StatsExact + 1)}, []reader{each(func(rows *sql.Rows) error {
		var n int
		var st backends.QueueStats
		var now time.Time
		var claimed, ready sql.NullTime
		err := rows.Scan(&n, &now, &st.Ready, &st.Blocked, &st.Scheduled, &st.Claimed, &st.Done, &st.Dead, &st.Paused, &claimed, &ready)
		if err != nil {
			return err
		}
		if st.Queue, err = item(queues, n); err != nil {
			return err
		}
		st.OldestReady, st.OldestClaimed = age(now, ready), age(now, claimed)
		all[n] = st
		return nil
	})}})
}

// age returns the time since an instant: at least a millisecond, because 0 means that there is none.
func age(now time.Time, at sql.NullTime) time.Duration {
	if !at.Valid {
		return 0
	}
	return max(now.Sub(at.Time), time.Millisecond)
}

// listPlace is the position at which a list of jobs continues.
type listPlace struct {
	priority int16
	position int64
	at       string
	id       int64
	group    string // as the tables have it
}

func listStart() listPlace { return listPlace{priority: 32767, at: instant(time.Time{})} }

// Place implements core.Reader.
func (q inspection) Place(ctx context.Context, p backends.Peek, id int64) (place any, found bool, err error) {
	from := listStart()
	err = q.once(ctx, call{q.sql.place, []any{p.Queue, id}, []reader{each(func(rows *sql.Rows) error {
		found = true
		var run, claimed, finished sql.NullTime
		if err := rows.Scan(&from.priority, &from.position, &run, &claimed, &finished, &from.group); err != nil {
			return err
		}
		from.id = id
		at := map[backends.State]sql.NullTime{
			backends.StateScheduled: run, backends.StateClaimed: claimed, backends.StateDone: finished, backends.StateDead: finished,
		}[p.State]
		if at.Valid { // NULL if the job has left the state
			from.at = instant(at.Time)
		}
		return nil
	})}})
	return from, found, err
}

// Sizes implements core.Reader.
func (q inspection) Sizes(ctx context.Context, p backends.Peek, ids []int64, after any, f func(id, bytes int64)) error {
	from, ok := after.(listPlace)
	if !ok {
		from = listStart()
	}
	limit := int64(p.Max)
	c := call{piece: q.sql.chosen, args: []any{p.Queue, document(idRows(ids))}}
	if ids == nil {
		switch p.State {
		case backends.StateReady:
			c = call{piece: q.sql.peekReady, args: []any{p.Queue, int64(from.priority), from.position, limit}}
		case backends.StateBlocked:
			c = call{piece: q.sql.peekBlocked, args: []any{p.Queue, from.group, int64(from.priority), from.position, limit}}
		case backends.StateScheduled:
			c = call{piece: q.sql.peekScheduled, args: []any{p.Queue, from.at, from.id, limit}}
		case backends.StateClaimed:
			c = call{piece: q.sql.peekClaimed, args: []any{p.Queue, from.at, from.id, limit}}
		default:
			c = call{piece: q.sql.peekFinished, args: []any{p.Queue, from.at, from.id, limit, string(p.State)}}
			if p.Newest {
				c.piece = q.sql.peekNewest
				if from.at == listStart().at {
					c.args[1] = instant(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC))
				}
			}
		}
	}
	for range c.sets {
		c.read = append(c.read, each(func(rows *sql.Rows) error {
			var id, bytes int64
			if err := rows.Scan(&id, &bytes); err != nil {
				return err
			}
			f(id, bytes)
			return nil
		}))
	}
	return q.once(ctx, c)
}

// KeyHolder implements core.Reader.
func (q inspection) KeyHolder(ctx context.Context, queue, key string) (id int64, found bool, err error) {
	err = q.once(ctx, call{q.sql.keyHolder, []any{queue, key}, []reader{each(func(rows *sql.Rows) error {
		found = true
		return rows.Scan(&id)
	})}})
	return id, found, err
}

// Views implements core.Reader.
func (q inspection) Views(ctx context.Context, queue string, ids []int64) (views []backends.View, err error) {
	index := map[int64]int{}
	err = q.once(ctx, call{q.sql.view, []any{queue, document(idRows(ids))}, []reader{
		each(func(rows *sql.Rows) error {
			id, v, err := scanView(rows)
			if err != nil {
				return fmt.Errorf("qsidecar_jobs row %d: %w", id, err)
			}
			index[id] = len(views)
			views = append(views, v)
			return nil
		}),
		each(func(rows *sql.Rows) error {
			var job int64
			var f backends.Failure
			if err := rows.Scan(&job, &f.Attempt, (*string)(&f.Cause), &f.Message, &f.At); err != nil {
				return err
			}
			f.At = f.At.UTC()
			if i, ok := index[job]; ok {
				views[i].Failures = append(views[i].Failures, f)
			}
			return nil
		}),
	}})
	return views, err
}

func scanView(rows *sql.Rows) (id int64, v backends.View, err error) {
	var run, claimed, finished, startBefore sql.NullTime
	var headers, worker string
	var progress int16
	err = rows.Scan(&id, &v.Queue, (*string)(&v.State), &v.Payload, &v.Priority, &v.Attempt, &v.MaxAttempts, &v.EnqueuedAt,
		&run, &claimed, &finished, &worker, &v.Key, &headers, &v.Result, &progress, &startBefore, &v.Group)
	if err != nil {
		return id, v, err
	}
	v.Group = givenGroup(v.Group)
	v.ID, v.EnqueuedAt, v.HasProgress = core.ID(id), v.EnqueuedAt.UTC(), progress != 0
	if finished.Valid {
		v.FinishedAt = finished.Time.UTC()
	}
	if startBefore.Valid {
		v.StartBefore = startBefore.Time.UTC()
	}
	switch {
	case v.State == backends.StateScheduled && run.Valid:
		v.RunAt = run.Time.UTC()
	case v.State == backends.StateClaimed && claimed.Valid:
		v.ClaimedAt, v.Worker = claimed.Time.UTC(), worker
	}
	v.Headers = core.ReadHeaders(headers)
	return id, v, nil
}

// ClaimedBy implements core.Reader.
func (q inspection) ClaimedBy(ctx context.Context, owner backends.Identity, after int64, limit int) (all []backends.ClaimedJob, err error) {
	err = q.once(ctx, call{q.sql.claimedBy, []any{int64(owner), after, int64(limit)}, []reader{each(func(rows *sql.Rows) error {
		var j backends.ClaimedJob
		var id, host, number int64
		if err := rows.Scan(&id, &host, &number, &j.Queue, &j.Timed); err != nil {
			return err
		}
		j.Lease = backends.Lease{Job: core.ID(id), Token: backends.Token{Sidecar: backends.Identity(host), Number: uint64(number)}}
		all = append(all, j)
		return nil
	})}})
	return all, err
}

// Hours implements core.Reader.
func (q inspection) Hours(ctx context.Context, queue string) (all []backends.HourTotals, err error) {
	err = q.once(ctx, call{q.sql.hours, []any{queue}, []reader{each(func(rows *sql.Rows) error {
		var h backends.HourTotals
		err := rows.Scan(core.HourColumns(&h)...)
		all = append(all, h)
		return err
	})}})
	return all, err
}

// Cancelled implements core.Reader.
func (q inspection) Cancelled(ctx context.Context, owner backends.Identity) (claims []backends.Token, err error) {
	err = q.once(ctx, call{q.sql.cancelled, []any{int64(owner)}, []reader{tokensInto(&claims)}})
	return claims, err
}
