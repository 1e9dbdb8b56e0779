package postgres

import (
	"context"
	"math"
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
func (t *tx) Retry(ctx context.Context, queue string, ids []int64, after any, limit int64, whole bool) (r core.Retried, err error) {
	var last retryPlace
	read := func(rows pgx.Rows) error {
		var keyed, got int64
		if err := rows.Scan(&keyed, &got, &r.N, &r.Seen, &last.at, &last.id); err != nil {
			return err
		}
		if whole && got < keyed {
			return backends.ErrKeyTaken
		}
		return nil
	}
	if ids != nil {
		err = t.ask(ctx, t.s.sql.retry, read, queue, ids)
	} else {
		from, _ := after.(retryPlace)
		err = t.ask(ctx, t.s.sql.retryFrom, read, queue, from.at, from.id, limit)
	}
	r.Last = last
	return r, err
}

// deleting runs a statement that first chooses rows and then deletes them. It returns an error
// if fewer rows were deleted than chosen.
func (t *tx) deleting(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = t.ask(ctx, sql, func(rows pgx.Rows) error {
		var chosen int64
		if err := rows.Scan(&chosen, &n); err != nil {
			return err
		}
		if n < chosen {
			return backends.Refused(core.ErrSilent)
		}
		return nil
	}, args...)
	return n, err
}

// Delete implements core.Commander.
func (t *tx) Delete(ctx context.Context, queue string, ids []int64) (int64, error) {
	return t.deleting(ctx, t.s.sql.delete, queue, ids)
}

// Purge implements core.Commander.
func (t *tx) Purge(ctx context.Context, queue string, state backends.State, limit int64) (int64, error) {
	return t.deleting(ctx, t.s.sql.purge[state], queue, limit)
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

// Count implements core.Reader.
func (t *tx) Count(ctx context.Context, queue string, state backends.State) (n int64, err error) {
	err = t.ask(ctx, t.s.sql.count[state], func(rows pgx.Rows) error { return rows.Scan(&n) }, queue, int64(math.MaxInt64))
	return n, err
}

// KeysTaken implements core.Reader.
func (t *tx) KeysTaken(ctx context.Context, queue string) (bool, error) {
	var taken, twice bool
	t.each(t.s.sql.keysTaken, func(rows pgx.Rows) error { return rows.Scan(&taken) }, queue)
	err := t.ask(ctx, t.s.sql.keysTwice, func(rows pgx.Rows) error { return rows.Scan(&twice) }, queue)
	return taken || twice, err
}
