package sqlserver

import (
	"context"
	"database/sql"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// retryPlace is the last dead job that a retry has seen.
type retryPlace struct {
	at string
	id int64
}

// Retry implements core.Commander.
func (t *tx) Retry(ctx context.Context, queue string, ids []int64, after any, limit int64) (r core.Step, err error) {
	read := func(rows *sql.Rows) error {
		var n, seen int64
		var at sql.NullTime
		var id sql.NullInt64
		if err := one(&n, &seen, &at, &id)(rows); err != nil {
			return err
		}
		r.N, r.Seen = r.N+n, r.Seen+seen
		if at.Valid && id.Valid {
			r.Last = retryPlace{instant(at.Time), id.Int64}
		}
		return nil
	}
	if ids != nil {
		chunks(ids, func(_ int, ids []int64) {
			t.add(t.s.sql.retryIDs, []reader{read}, queue, document(idRows(ids)))
		})
		err = t.send(ctx)
		return r, err
	}
	from, ok := after.(retryPlace)
	if !ok {
		from.at = instant(time.Time{})
	}
	err = t.run(ctx, t.s.sql.retryFrom, []reader{read}, queue, from.at, from.id, limit)
	return r, err
}

// ChangeWaiting implements core.Commander.
func (t *tx) ChangeWaiting(ctx context.Context, queue string, ids []int64, c *backends.Command) (n int64, ready bool, err error) {
	var set, priority, mode, delay int64
	at := instant(time.Time{})
	if c.Priority != nil {
		set, priority = 1, int64(*c.Priority)
	}
	if c.Delay != nil {
		mode, delay = 1, max(core.MS(*c.Delay), 0)
	} else if !c.RunAt.IsZero() {
		mode, at = 2, instant(c.RunAt)
	}
	chunks(ids, func(_ int, ids []int64) {
		t.add(t.s.sql.change, []reader{func(rows *sql.Rows) error {
			var changed, now int64
			err := one(&changed, &now)(rows)
			n, ready = n+changed, ready || now > 0
			return err
		}, t.notesThem()}, queue, document(idRows(ids)), set, priority, mode, delay, ms(c.Within), at)
	})
	err = t.send(ctx)
	return n, ready, err
}

// Delete implements core.Commander.
func (t *tx) Delete(ctx context.Context, queue string, ids []int64) (n int64, err error) {
	chunks(ids, func(_ int, ids []int64) {
		t.add(t.s.sql.delete, []reader{total(&n), t.notesThem()}, queue, document(idRows(ids)))
	})
	err = t.send(ctx)
	return n, err
}

// LockClaimed implements core.Commander.
func (t *tx) LockClaimed(ctx context.Context, queue string, ids []int64) (rows []*core.Row, err error) {
	t.lock(queue, ids, func(r *core.Row) { rows = append(rows, r) })
	err = t.send(ctx)
	return rows, err
}

// States implements core.Commander.
func (t *tx) States(ctx context.Context, queue string, ids []int64) (all []core.JobState, err error) {
	chunks(ids, func(_ int, ids []int64) {
		t.add(t.s.sql.states, []reader{each(func(rows *sql.Rows) error {
			var j core.JobState
			err := rows.Scan(&j.ID, (*string)(&j.State), &j.Group, &j.Cancelled)
			j.Group = givenGroup(j.Group)
			all = append(all, j)
			return err
		})}, queue, document(idRows(ids)))
	})
	err = t.send(ctx)
	return all, err
}

// CancelWaiting implements core.Commander.
func (t *tx) CancelWaiting(ctx context.Context, queue string, ids []int64, retainDead time.Duration) error {
	var n int64
	chunks(ids, func(_ int, ids []int64) {
		t.add(t.s.sql.cancelWaiting, []reader{total(&n)}, queue, document(idRows(ids)), max(core.MS(retainDead), 0), mssql.NVarCharMax(backends.CancelledMessage))
	})
	if err := t.send(ctx); err != nil {
		return err
	}
	if n < int64(len(ids)) {
		return backends.Refused(core.ErrSilent)
	}
	return nil
}

// NoteCancelled implements core.Commander.
func (t *tx) NoteCancelled(claims []*core.Row) {
	rows := make([]claimRow, len(claims))
	for i, r := range claims {
		rows[i] = claimRow{int64(r.Owner), int64(r.Token.Sidecar), int64(r.Token.Number)}
	}
	chunks(rows, func(_ int, rows []claimRow) { t.add(t.s.sql.noteCancelled, nil, document(rows)) })
}

// Purge implements core.Commander.
func (t *tx) Purge(ctx context.Context, queue string, state backends.State, _ any, limit int64) (r core.Step, err error) {
	err = t.run(ctx, t.s.sql.purge[state], []reader{total(&r.N), t.notesThem()}, queue, limit)
	r.Seen = r.N
	return r, err
}

// Pause implements core.Commander.
func (t *tx) Pause(ctx context.Context, queue string, paused bool) (ready bool, err error) {
	if paused {
		return false, t.run(ctx, t.s.sql.pause, nil, queue)
	}
	err = t.run(ctx, t.s.sql.resume, []reader{one(&ready)}, queue)
	return ready, err
}
