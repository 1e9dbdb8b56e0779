package sqlserver

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// FindDue implements core.Driver, in one batch.
func (a access) FindDue(ctx context.Context, q core.DueQuery) (d core.Due, err error) {
	var fireAt *int64
	d.Ready, d.Returns = make([]bool, len(q.Waiting)), make([]int64, len(q.Waiting))
	err = a.once(ctx, call{a.sql.around, []any{
		int64(bit(q.Prune)), int64(bit(q.Owners)), int64(q.Schedules), int64(bit(q.Cancelled && !q.Watched)), int64(bit(!q.Watched)),
		document(segmentsOf(q.Pieces, func(i int) string { return q.Waiting[i] })), listOf(q.Waiting), int64(q.Sidecar),
	}, []reader{
		one(&d.At, &d.RunAt, &d.DueAt, &d.ExpireAt, &d.Dead, &d.Jobs, &d.Keys, &fireAt, &d.Batches, &d.Groups),
		each(func(rows *sql.Rows) error {
			var owner int64
			err := rows.Scan(&owner)
			d.Lost = append(d.Lost, owner)
			return err
		}),
		each(func(rows *sql.Rows) error {
			var policy int
			if err := rows.Scan(&policy); err != nil {
				return err
			}
			_, err := item(d.Ready, policy-1)
			if err == nil {
				d.Ready[policy-1] = true
			}
			return err
		}),
		returnsInto(d.Returns),
		tokensInto(&d.Cancelled),
	}})
	if fireAt != nil {
		at := time.UnixMilli(*fireAt)
		d.FireAt = &at
	}
	return d, err
}

// tokensInto returns a reader of claims that a cancel ended.
func tokensInto(all *[]backends.Token) reader {
	return each(func(rows *sql.Rows) error {
		var sidecar, number int64
		err := rows.Scan(&sidecar, &number)
		*all = append(*all, backends.Token{Sidecar: backends.Identity(sidecar), Number: uint64(number)})
		return err
	})
}

// ForgetCancelled implements core.Maintainer.
func (t *tx) ForgetCancelled(owner backends.Identity, claims []backends.Token) {
	rows := make([]claimRow, len(claims))
	for i, c := range claims {
		rows[i] = claimRow{int64(owner), int64(c.Sidecar), int64(c.Number)}
	}
	chunks(rows, func(_ int, rows []claimRow) { t.add(t.s.sql.forgetCancelled, nil, int64(owner), document(rows)) })
}

// Promote implements core.Maintainer.
func (t *tx) Promote(ctx context.Context, _ core.Due, only []int64, limit int, promoted func(queue string)) (seen int, err error) {
	p, arg := t.s.sql.promote, any(int64(limit))
	if only != nil {
		p, arg = t.s.sql.promoteOnly, document(onlyRows(only))
	}
	err = t.run(ctx, p, []reader{each(func(rows *sql.Rows) error {
		var queue string
		if err := rows.Scan(&queue); err != nil {
			return err
		}
		seen++
		promoted(queue)
		return nil
	})}, arg)
	return seen, err
}

// LockExpired implements core.Expirer.
func (t *tx) LockExpired(ctx context.Context, _ core.Due, only []int64, limit int) (all []core.Expired, seen int, err error) {
	p, arg := t.s.sql.lockExpired, any(int64(limit))
	if only != nil {
		p, arg = t.s.sql.lockExpiredOnly, document(onlyRows(only))
	}
	err = t.run(ctx, p, []reader{each(func(rows *sql.Rows) error {
		var e core.Expired
		err := rows.Scan(&e.ID, &e.Queue, &e.Remove)
		all = append(all, e)
		return err
	})}, arg)
	return all, len(all), err
}

// FindScheduled implements core.Maintainer.
func (t *tx) FindScheduled(ctx context.Context, _ core.Due, limit int) ([]core.Found, error) {
	return t.find(ctx, t.s.sql.findScheduled, limit)
}

// FindExpired implements core.Maintainer.
func (t *tx) FindExpired(ctx context.Context, _ time.Time, limit int) ([]core.Found, error) {
	return t.find(ctx, t.s.sql.findExpired, limit)
}

func (t *tx) find(ctx context.Context, p *piece, limit int) (all []core.Found, err error) {
	err = t.run(ctx, p, []reader{each(func(rows *sql.Rows) error {
		var f core.Found
		err := rows.Scan(&f.ID, &f.Queue)
		all = append(all, f)
		return err
	})}, int64(limit))
	return all, err
}

// rowsInto returns a reader of locked claims.
func rowsInto(all *[]*core.Row) reader {
	return each(func(rows *sql.Rows) error {
		r, err := scanRow(rows)
		if err == nil {
			*all = append(*all, r)
		}
		return err
	})
}

// LockDue implements core.Maintainer.
func (t *tx) LockDue(ctx context.Context, _ core.Due, limit int) (rows []*core.Row, seen int, err error) {
	err = t.run(ctx, t.s.sql.lockDue, []reader{rowsInto(&rows)}, int64(limit))
	return rows, len(rows), err
}

// LockLost implements core.Maintainer.
func (t *tx) LockLost(ctx context.Context, d core.Due, limit int) (rows []*core.Row, seen int, err error) {
	owners := make([]ownerRow, len(d.Lost))
	for i, o := range d.Lost {
		owners[i] = ownerRow{o}
	}
	err = t.run(ctx, t.s.sql.lockLost, []reader{rowsInto(&rows), one(&seen)}, document(owners), int64(limit))
	return rows, seen, err
}

// MarkDead implements core.Maintainer.
func (t *tx) MarkDead(_ context.Context, suspects []backends.Suspect) error {
	var rows []sidecarRow
	for _, s := range suspects {
		r := sidecarRow{int64(s.Sidecar), int64(s.Heartbeats), ms(s.Timeout)}
		if !slices.ContainsFunc(rows, func(x sidecarRow) bool { return x.Sidecar == r.Sidecar }) {
			rows = append(rows, r)
		}
	}
	t.add(t.s.sql.markDead, nil, document(rows))
	return nil
}

// Forget implements core.Maintainer.
func (t *tx) Forget(context.Context, core.Due) error {
	t.add(t.s.sql.forget, nil)
	return nil
}

// Prune implements core.Maintainer. It always begins with the rows that expired first.
func (t *tx) Prune(ctx context.Context, what core.Pruned, _ time.Time, only []int64, limit int) (deleted, found int, last time.Time, err error) {
	p, arg := t.s.sql.pruneJobs, any(int64(limit))
	switch {
	case what == core.PruneKeys:
		p = t.s.sql.pruneKeys
	case only != nil:
		p, arg = t.s.sql.pruneOnly, document(onlyRows(only))
	}
	err = t.run(ctx, p, []reader{one(&deleted)}, arg)
	return deleted, deleted, time.Time{}, err
}
