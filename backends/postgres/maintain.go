package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// FindDue implements core.Driver with one statement.
func (a access) FindDue(ctx context.Context, q core.DueQuery) (o core.Due, err error) {
	s := a.Store
	p := piecesOf(q.Pieces, func(i int) string { return q.Waiting[i] })
	var ready []int32
	var never, fireAt *int64
	var cancelled []int64
	look := s.sql.look
	if !q.Cancelled {
		look = s.sql.lookJobs
	}
	read := func(rows pgx.Rows) error {
		return rows.Scan(&o.At, maybe{&o.RunAt}, maybe{&o.DueAt}, &o.Dead, maybe{&o.Jobs}, &o.Lost, &ready, &o.Returns, &never, &cancelled, &fireAt, &o.Batches, &o.Groups, maybe{&o.ExpireAt})
	}
	args := []any{q.Prune, q.Owners, p.queue, p.policy, p.fromU, p.fromP, p.toU, p.toP, q.Waiting, orNull(q.JobsFrom), q.Watched, orNull(q.DueFrom), int64(q.Sidecar), int64(q.Schedules)}
	if s.pooled {
		err = s.lookPooled(ctx, look, read, args)
	} else {
		err = s.rows(ctx, read, look, args...)
	}
	if err == nil && q.Prune {
		err = s.readOnce(ctx, func(_ context.Context, t *tx) error {
			t.each(s.sql.lookKeys, func(rows pgx.Rows) error { return rows.Scan(maybe{&o.Keys}) }, orNull(q.KeysFrom))
			return nil
		})
	}
	o.Ready = make([]bool, len(q.Waiting))
	for _, n := range ready {
		o.Ready[n-1] = true
	}
	if never != nil {
		o.Never = *never
	}
	for pair := range slices.Chunk(cancelled, 2) {
		o.Cancelled = append(o.Cancelled, backends.Token{Sidecar: backends.Identity(pair[0]), Number: uint64(pair[1])})
	}
	if fireAt != nil {
		at := time.UnixMilli(*fireAt)
		o.FireAt = &at
	}
	return o, err
}

// lookPooled also reads the epoch, which a session that the Store owns has read already.
func (s *Store) lookPooled(ctx context.Context, look string, read func(rows pgx.Rows) error, args []any) error {
	epoch := ""
	err := s.readOnce(ctx, func(_ context.Context, t *tx) error {
		t.each(s.sql.epoch, func(rows pgx.Rows) error { return rows.Scan(&epoch) })
		t.each(look, read, args...)
		return nil
	})
	if err == nil && epoch == "" {
		epoch, err = s.readEpoch(ctx, s.single()) // stores one
	}
	s.enter(epoch)
	return err
}

// since returns when the first due row of access.FindDue is due, or NULL if no time.Time is as early as it.
func since(first *time.Time) *time.Time {
	if first == nil || first.Before(time.Unix(0, 0)) {
		return nil
	}
	return first
}

// orNull returns nil, which becomes NULL, for the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Promote implements core.Maintainer.
func (t *tx) Promote(ctx context.Context, d core.Due, only []int64, limit int, promoted func(queue string)) (seen int, err error) {
	err = t.ask(ctx, t.s.sql.promote, func(rows pgx.Rows) error {
		var queue string
		err := rows.Scan(&queue)
		seen++
		promoted(queue)
		return err
	}, limit, since(d.RunAt), only)
	return seen, err
}

// FindScheduled implements core.Maintainer.
func (t *tx) FindScheduled(ctx context.Context, d core.Due, limit int) ([]core.Found, error) {
	return t.find(ctx, t.s.sql.findScheduled, limit, since(d.RunAt))
}

// FindExpired implements core.Maintainer.
func (t *tx) FindExpired(ctx context.Context, from time.Time, limit int) ([]core.Found, error) {
	return t.find(ctx, t.s.sql.findExpired, limit, from)
}

func (t *tx) find(ctx context.Context, sql string, args ...any) (all []core.Found, err error) {
	err = t.ask(ctx, sql, func(rows pgx.Rows) error {
		var f core.Found
		err := rows.Scan(&f.ID, &f.Queue)
		all = append(all, f)
		return err
	}, args...)
	return all, err
}

// lockRows runs a statement that locks rows, and returns the rows.
func (t *tx) lockRows(ctx context.Context, sql string, args ...any) (all []*core.Row, err error) {
	err = t.ask(ctx, sql, func(rows pgx.Rows) error {
		r, err := scanRow(rows)
		all = append(all, r)
		return err
	}, args...)
	return all, err
}

// LockDue implements core.Maintainer.
func (t *tx) LockDue(ctx context.Context, d core.Due, limit int) (rows []*core.Row, seen int, err error) {
	rows, err = t.lockRows(ctx, t.s.sql.lockDue, limit, since(d.DueAt))
	return rows, len(rows), err
}

// LockLost implements core.Maintainer.
func (t *tx) LockLost(ctx context.Context, d core.Due, limit int) (rows []*core.Row, seen int, err error) {
	rows, err = t.lockRows(ctx, t.s.sql.lockLost, d.Lost, limit)
	return rows, len(rows), err
}

// MarkDead implements core.Maintainer.
func (t *tx) MarkDead(_ context.Context, suspects []backends.Suspect) error {
	var host, heartbeats []int64
	for _, s := range suspects {
		host, heartbeats = append(host, int64(s.Sidecar)), append(heartbeats, int64(s.Heartbeats))
	}
	t.add(t.s.sql.markDead, nil, host, heartbeats)
	return nil
}

// Forget implements core.Maintainer.
func (t *tx) Forget(context.Context, core.Due) error {
	t.add(t.s.sql.forget, nil)
	t.add(t.s.sql.forgetOwners, nil)
	return nil
}

// ForgetCancelled implements core.Maintainer.
func (t *tx) ForgetCancelled(owner backends.Identity, claims []backends.Token) {
	var sidecars, numbers []int64
	for _, c := range claims {
		sidecars, numbers = append(sidecars, int64(c.Sidecar)), append(numbers, int64(c.Number))
	}
	t.add(t.s.sql.forgetCancelled, nil, int64(owner), sidecars, numbers)
}

// Prune implements core.Maintainer.
func (t *tx) Prune(ctx context.Context, what core.Pruned, from time.Time, only []int64, limit int) (deleted, found int, last time.Time, err error) {
	sql, args := t.s.sql.pruneJobs, []any{limit, from, only}
	if what == core.PruneKeys {
		sql, args = t.s.sql.pruneKeys, args[:2]
	}
	var at *time.Time
	err = t.ask(ctx, sql, func(rows pgx.Rows) error { return rows.Scan(&deleted, maybe{&at}) }, args...)
	if at != nil {
		last = *at
	}
	return deleted, deleted, last, err
}
