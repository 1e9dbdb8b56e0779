package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// retryPlace is the last dead job that Retry has scanned.
type retryPlace struct {
	at time.Time
	id int64
}

// Retry implements core.Commander.
func (t *tx) Retry(ctx context.Context, queue string, ids []int64, after any, limit int64) (r core.Step, err error) {
	var last retryPlace
	read := func(rows pgx.Rows) error { return rows.Scan(&r.N, &r.Seen, &last.at, &last.id) }
	if ids != nil {
		err = t.ask(ctx, t.s.sql.retry, read, queue, ids)
	} else {
		from, _ := after.(retryPlace)
		err = t.ask(ctx, t.s.sql.retryFrom, read, queue, from.at, from.id, limit)
	}
	r.Last = last
	return r, err
}

// ChangeWaiting implements core.Commander.
func (t *tx) ChangeWaiting(ctx context.Context, queue string, ids []int64, c *backends.Command) (n int64, ready bool, err error) {
	var delay *int64
	var runAt *time.Time
	var groups []string
	if c.Delay != nil {
		ms := core.MS(*c.Delay)
		delay = &ms
	} else if !c.RunAt.IsZero() {
		runAt = &c.RunAt
	}
	err = t.ask(ctx, t.s.sql.change, func(rows pgx.Rows) error {
		var seen int64
		if err := rows.Scan(&seen, &n, &ready, &groups); err != nil {
			return err
		}
		if n < seen {
			return backends.Refused(core.ErrSilent)
		}
		return nil
	}, queue, ids, c.Priority, delay, core.MS(c.Within), runAt)
	t.noteNames(queue, groups)
	return n, ready, err
}

// deleting runs a statement that first chooses rows and then deletes them. It stores further columns of the answer in
// `to`. It returns an error if fewer rows were deleted than chosen.
func (t *tx) deleting(ctx context.Context, sql string, to []any, queue string, args ...any) (r core.Step, err error) {
	var groups []string
	err = t.ask(ctx, sql, func(rows pgx.Rows) error {
		if err := rows.Scan(append([]any{&r.Seen, &r.N, &groups}, to...)...); err != nil {
			return err
		}
		if r.N < r.Seen {
			return backends.Refused(core.ErrSilent)
		}
		return nil
	}, append([]any{queue}, args...)...)
	t.noteNames(queue, groups)
	return r, err
}

// noteNames is NoteGroups for groups of one queue. Without groups it needs no table.
func (t *tx) noteNames(queue string, names []string) {
	groups := make([]core.Group, len(names))
	for i, name := range names {
		groups[i] = core.Group{Queue: queue, Name: name}
	}
	if len(groups) > 0 {
		t.NoteGroups(groups)
	}
}

// Delete implements core.Commander.
func (t *tx) Delete(ctx context.Context, queue string, ids []int64) (int64, error) {
	r, err := t.deleting(ctx, t.s.sql.delete, nil, queue, ids)
	return r.N, err
}

// States implements core.Commander.
func (t *tx) States(ctx context.Context, queue string, ids []int64) (all []core.JobState, err error) {
	err = t.ask(ctx, t.s.sql.states, func(rows pgx.Rows) error {
		var j core.JobState
		err := rows.Scan(&j.ID, (*string)(&j.State), &j.Group, &j.Cancelled)
		all = append(all, j)
		return err
	}, queue, ids)
	return all, err
}

// CancelWaiting implements core.Commander.
func (t *tx) CancelWaiting(ctx context.Context, queue string, ids []int64, retainDead time.Duration) error {
	return t.ask(ctx, t.s.sql.cancelWaiting, func(rows pgx.Rows) error {
		n := 0
		if err := rows.Scan(&n); err != nil {
			return err
		}
		if n < len(ids) {
			return backends.Refused(core.ErrSilent)
		}
		return nil
	}, queue, ids, core.MS(retainDead), backends.CancelledMessage)
}

// NoteCancelled implements core.Commander.
func (t *tx) NoteCancelled(claims []*core.Row) {
	var owners, sidecars, numbers []int64
	for _, r := range claims {
		owners, sidecars, numbers = append(owners, int64(r.Owner)), append(sidecars, int64(r.Token.Sidecar)), append(numbers, int64(r.Token.Number))
	}
	t.add(t.s.sql.noteCancelled, nil, owners, sidecars, numbers)
}

// Purge implements core.Commander.
func (t *tx) Purge(ctx context.Context, queue string, state backends.State, after any, limit int64) (r core.Step, err error) {
	last, ok := after.(listPlace)
	if !ok {
		last = listStart
	}
	args, place := []any{limit, last.at, last.id}, []any{&last.at, &last.id}
	switch state {
	case backends.StateBlocked:
		args, place = []any{limit, last.group, last.spot.Urgency, last.spot.Position}, []any{&last.group, &last.spot.Urgency, &last.spot.Position}
	case backends.StateReady:
		args, place = []any{limit, last.spot.Urgency, last.spot.Position}, []any{&last.spot.Urgency, &last.spot.Position}
	}
	r, err = t.deleting(ctx, t.s.sql.purge[state], place, queue, args...)
	r.Last = last
	return r, err
}

// LockClaimed implements core.Commander.
func (t *tx) LockClaimed(ctx context.Context, queue string, ids []int64) ([]*core.Row, error) {
	return t.lockRows(ctx, t.s.sql.lockClaimed, queue, ids)
}

// Pause implements core.Commander.
func (t *tx) Pause(ctx context.Context, queue string, paused bool) (ready bool, err error) {
	if paused {
		t.add(t.s.sql.pause, nil, queue)
		return false, nil
	}
	t.add(t.s.sql.resume, nil, queue)
	err = t.ask(ctx, t.s.sql.anyReady, func(rows pgx.Rows) error { return rows.Scan(&ready) }, queue)
	return ready, err
}
