package sqlite

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// FindDue implements core.Driver.
func (a access) FindDue(ctx context.Context, q core.DueQuery) (o core.Due, err error) {
	err = a.reading(ctx, func(t *tx) error {
		o = core.Due{At: time.UnixMilli(t.now), Ready: make([]bool, len(q.Waiting)), Returns: make([]int64, len(q.Waiting))}
		if o.RunAt, err = t.first(t.sql.scheduled, 2); err != nil {
			return err
		}
		if o.DueAt, err = t.first(t.sql.due, 1); err != nil {
			return err
		}
		if o.ExpireAt, err = t.first(t.sql.unstarted, 2); err != nil {
			return err
		}
		if err := t.findLostOwners(&o); err != nil {
			return err
		}
		if err := t.query(t.sql.anyDead, func(r row) error { o.Dead = r.int(0) != 0; return nil }); err != nil {
			return err
		}
		if q.Schedules != core.NoSchedules {
			if o.FireAt, err = t.first(t.sql.firesAt, 0, int64(q.Schedules)); err != nil {
				return err
			}
		}
		if q.Cancelled && !q.Watched {
			if err := t.query(t.sql.batchesDue, func(r row) error { o.Batches = r.int(0) != 0; return nil }, t.now); err != nil {
				return err
			}
		}
		if q.Prune {
			if o.Jobs, err = t.first(t.sql.expired, 2, t.now); err != nil {
				return err
			}
			if o.Keys, err = t.first(t.sql.expiredKeys, 2, t.now); err != nil {
				return err
			}
			if err := t.query(t.sql.never, func(r row) error { o.Never = r.int(0); return nil }); err != nil {
				return err
			}
		}
		if !q.Watched {
			if err := t.query(t.sql.hasGroups, func(r row) error { o.Groups = r.int(0) != 0; return nil }); err != nil {
				return err
			}
		}
		for i, queue := range q.Waiting {
			if o.Ready[i], err = t.exists(t.sql.anyReady, queue); err != nil {
				return err
			}
		}
		if q.Cancelled {
			o.Cancelled, err = t.Cancelled(ctx, q.Sidecar)
		}
		return err
	})
	return o, err
}

// first returns the instant in a column of a query's first row, or nil if there is no row.
func (t *tx) first(sql string, column int, args ...any) (at *time.Time, err error) {
	err = t.query(sql, func(r row) error {
		when := time.UnixMilli(r.int(column))
		at = &when
		return nil
	}, append(args, 1)...)
	return at, err
}

// findLostOwners finds the owners of claims that are declared dead or missing. It steps through the owners
// and not through the rows: there are only as many owners as sidecars.
func (t *tx) findLostOwners(o *core.Due) (err error) {
	for from, more := int64(math.MinInt64), true; more; {
		owner, found := int64(0), false
		if err := t.query(t.sql.nextOwner, func(r row) error {
			owner, found = r.int(0), true
			return nil
		}, from); err != nil {
			return err
		}
		if !found {
			break
		}
		if owner != 0 {
			alive, err := t.exists(t.sql.lives, owner)
			if err != nil {
				return err
			}
			if !alive {
				o.Lost = append(o.Lost, owner)
			}
		}
		from, more = owner+1, owner < math.MaxInt64
	}
	return nil
}

// rows collects the rows of a query before the caller changes them.
func (t *tx) rows(sql string, keep func(r row) bool, args ...any) (found []row, err error) {
	err = t.query(sql, func(r row) error {
		if !keep(r) {
			return errStop
		}
		found = append(found, slices.Clone(r))
		return nil
	}, args...)
	return found, err
}

// Promote implements core.Maintainer.
func (t *tx) Promote(_ context.Context, _ core.Due, only []int64, limit int, promoted func(queue string)) (seen int, err error) {
	due, err := t.dueRows(only, limit)
	if err != nil {
		return 0, err
	}
	for _, r := range due {
		position, err := t.next()
		if err != nil {
			return 0, err
		}
		if err := t.one(t.sql.promote, position, t.now, r.int(0)); err != nil {
			return 0, err
		}
		if r.int(3) != 0 { // it is blocked
			promoted("")
		} else {
			promoted(r.text(1))
		}
	}
	return len(due), nil
}

// dueRows returns the scheduled jobs that are due, or, if only isn't nil, those of them that are in it.
func (t *tx) dueRows(only []int64, limit int) ([]row, error) {
	all, err := t.rows(t.sql.scheduled, func(r row) bool { return r.int(2) <= t.now }, withRefused(only, limit))
	return among(all, only), err
}

// withRefused is the limit of a query for the jobs in only, before which refused ones come.
func withRefused(only []int64, limit int) int {
	if only != nil {
		limit += backends.MaxObstacles
	}
	return limit
}

// among returns the rows of the jobs in only; nil: all.
func among(rows []row, only []int64) []row {
	if only == nil {
		return rows
	}
	return slices.DeleteFunc(rows, func(r row) bool { _, found := slices.BinarySearch(only, r.int(0)); return !found })
}

// FindScheduled implements core.Maintainer.
func (t *tx) FindScheduled(_ context.Context, _ core.Due, limit int) ([]core.Found, error) {
	rows, err := t.dueRows(nil, limit)
	return foundIn(rows), err
}

// FindExpired implements core.Maintainer.
func (t *tx) FindExpired(_ context.Context, _ time.Time, limit int) ([]core.Found, error) {
	rows, err := t.rows(t.sql.expired, func(row) bool { return true }, t.now, limit)
	return foundIn(rows), err
}

func foundIn(rows []row) (all []core.Found) {
	for _, r := range rows {
		all = append(all, core.Found{ID: r.int(0), Queue: r.text(1)})
	}
	return all
}

// LockDue implements core.Maintainer.
func (t *tx) LockDue(_ context.Context, _ core.Due, limit int) (rows []*core.Row, seen int, err error) {
	due, err := t.rows(t.sql.due, func(r row) bool { return r.int(1) <= t.now }, limit)
	if err != nil {
		return nil, 0, err
	}
	for _, r := range due {
		c, err := t.find(r.int(0))
		if err != nil {
			return nil, 0, err
		}
		if c == nil {
			continue
		}
		c.Cause = backends.CauseLeaseEnded
		if !r.null(2) && r.int(2) <= r.int(1) {
			c.Cause = backends.CauseTimedOut
		}
		rows = append(rows, &c.Row)
	}
	return rows, len(due), nil
}

// LockLost implements core.Maintainer.
func (t *tx) LockLost(_ context.Context, d core.Due, limit int) (rows []*core.Row, seen int, err error) {
	for _, owner := range d.Lost {
		alive, err := t.exists(t.sql.lives, owner) // a heartbeat may have added it again
		if err != nil {
			return nil, 0, err
		}
		if alive {
			continue
		}
		found, err := t.rows(t.sql.owned, func(row) bool { return true }, owner, limit-seen)
		if err != nil {
			return nil, 0, err
		}
		for _, r := range found {
			c, err := t.find(r.int(0))
			if err != nil {
				return nil, 0, err
			}
			if c != nil {
				c.Cause = backends.CauseSidecarLost
				rows = append(rows, &c.Row)
			}
		}
		if seen += len(found); seen >= limit {
			break
		}
	}
	return rows, seen, nil
}

// MarkDead implements core.Maintainer.
func (t *tx) MarkDead(_ context.Context, suspects []backends.Suspect) error {
	for _, s := range suspects {
		if _, err := t.exec(t.sql.markSilent, int64(s.Sidecar), int64(s.Heartbeats), t.now, t.now+core.MS(s.Timeout)); err != nil {
			return err
		}
	}
	return nil
}

// Forget implements core.Maintainer.
func (t *tx) Forget(context.Context, core.Due) error {
	dead, err := t.rows(t.sql.deadSidecars, func(row) bool { return true })
	if err != nil {
		return err
	}
	for _, r := range dead {
		owns, err := t.exists(t.sql.owned, r.int(0), 1)
		if err == nil && !owns {
			_, err = t.exec(t.sql.forget, r.int(0))
		}
		if err != nil {
			return err
		}
	}
	_, err = t.exec(t.sql.forgetOwners)
	return err
}

// ForgetCancelled implements core.Maintainer.
func (t *tx) ForgetCancelled(owner backends.Identity, claims []backends.Token) {
	for _, c := range claims {
		t.do(func() error {
			_, err := t.exec(t.sql.forgetCancelled, int64(owner), int64(c.Sidecar), int64(c.Number))
			return err
		})
	}
}

// Prune implements core.Maintainer. It ignores from and begins at the first entry: here, no old
// snapshot keeps deleted entries.
func (t *tx) Prune(_ context.Context, what core.Pruned, _ time.Time, only []int64, limit int) (deleted, found int, last time.Time, err error) {
	sql := t.sql.expired
	if what == core.PruneKeys {
		sql = t.sql.expiredKeys
	}
	rows, err := t.rows(sql, func(row) bool { return true }, t.now, withRefused(only, limit))
	if err != nil {
		return 0, 0, last, err
	}
	rows = among(rows, only)
	for _, r := range rows {
		if what == core.PruneKeys {
			_, err = t.exec(t.sql.dropKey, r.text(0), r.text(1))
		} else {
			err = t.one(t.sql.remove, r.int(0))
		}
		if err != nil {
			return 0, 0, last, err
		}
	}
	return len(rows), len(rows), last, nil
}
