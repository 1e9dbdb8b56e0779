package mysql

import (
	"context"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

// reap makes the fates of claims come true that nobody ended by a lease.
func (b *bitten) reap(t *tx, j *job, cause backends.Cause) {
	j.meet(t.now, j.standing().AfterReap(cause))
	b.reaped[cause]++
	b.fallen.Add(j.queue, cause, j.state == backends.StateDead)
	if j.state == backends.StateReady {
		b.freed = append(b.freed, j.queue)
	}
}

// reapDue takes back timed leases that ended and runs over their deadline.
func (b *bitten) reapDue(ctx context.Context, t *tx, lanes []string, limit int) error {
	t.askNow()
	var ids []int64
	for _, lane := range lanes {
		t.pick(&ids, lane, limit)
	}
	if err := t.send(ctx); err != nil {
		return err
	}
	ids = ids[:min(limit, len(ids))]
	found, all, err := t.locked(ctx, ids)
	if err != nil {
		return err
	}
	b.rows = len(ids)
	for _, j := range found {
		if j.state != backends.StateClaimed || j.due == 0 || j.due > t.now {
			continue
		}
		cause := backends.CauseLeaseEnded
		if j.deadline != 0 && j.deadline <= j.due {
			cause = backends.CauseTimedOut
		}
		b.reap(t, j, cause)
	}
	return t.flush(ctx, all)
}

// reapLost takes the claims of an owner that lives no more. A timed lease needs no
// owner: it becomes nobody's, so that the next look does not find it again.
func (b *bitten) reapLost(ctx context.Context, t *tx, owner int64, limit int) error {
	t.askNow()
	var ids []int64
	lives := false
	t.each(func(*result) error {
		lives = true
		return nil
	}, "SELECT 1 FROM qsidecar_hosts WHERE host = ? AND NOT dead", owner) // it may have joined since
	t.each(func(r *result) error {
		ids = append(ids, r.int(0))
		return nil
	}, "SELECT id FROM "+jobs+" WHERE lane = ? ORDER BY urgency, place, id LIMIT ?", ownerLane(owner), limit)
	if err := t.send(ctx); err != nil || lives {
		return err
	}
	found, all, err := t.locked(ctx, ids)
	if err != nil {
		return err
	}
	b.rows = len(ids)
	for _, j := range found {
		switch {
		case j.state != backends.StateClaimed || j.owner != owner:
		case j.lease > 0:
			j.owner, j.change = 0, held
		default:
			b.reap(t, j, backends.CauseSidecarLost)
		}
	}
	return t.flush(ctx, all)
}

// forget deletes the rows of dead hosts that own nothing any more.
func (b *bitten) forget(ctx context.Context, t *tx, dead []int64) error {
	var empty []int64
	for _, host := range dead {
		t.each(func(r *result) error {
			if r.int(0) == 0 {
				empty = append(empty, host)
			}
			return nil
		}, "SELECT EXISTS (SELECT 1 FROM "+jobs+" WHERE lane = ?)", ownerLane(host))
	}
	if err := t.send(ctx); err != nil || len(empty) == 0 {
		return err
	}
	t.wrote = true
	slices.Sort(empty)
	t.add("DELETE FROM qsidecar_hosts WHERE host IN (" + list(empty) + ") AND dead")
	return nil
}
