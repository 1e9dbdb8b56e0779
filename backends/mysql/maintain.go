package mysql

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// MarkDead implements core.Maintainer.
func (t *tx) MarkDead(_ context.Context, suspects []backends.Suspect) error {
	s := t.s
	t.wrote = true
	suspects = slices.SortedFunc(slices.Values(suspects), func(a, b backends.Suspect) int { return cmp.Compare(int64(a.Host), int64(b.Host)) })
	for _, x := range suspects {
		// The condition is that of backends.HeartbeatExpired.
		t.add("UPDATE qsidecar_hosts SET dead = 1 WHERE host = ? AND beats = ? AND NOT dead AND (expires_at <= "+s.sql.clock+
			" OR NOT has_left AND expires_at > "+s.sql.clock+" + INTERVAL ? MICROSECOND)", int64(x.Host), int64(x.Heartbeats), x.Timeout.Microseconds())
	}
	return nil
}

// pick queues a statement that finds the due rows of a `lane`, in their order. It does not lock them:
// lockFree locks them by id.
func (t *tx) pick(ids *[]int64, lane string, limit int) {
	t.each(func(r *result) error {
		*ids = append(*ids, r.int(0))
		return nil
	}, "SELECT id FROM "+jobs+" WHERE lane = ? AND urgency = 0 AND place <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "+t.s.sql.clock+") ORDER BY urgency, place, id LIMIT ?", lane, limit)
}

// lockFree locks the rows that no other transaction has locked, and returns them in the order of ids.
func (t *tx) lockFree(ctx context.Context, ids []int64) (found []*job, err error) {
	all := map[int64]*job{}
	t.lock(slices.Clone(ids), t.s.sql.skip, func(j *job) { all[j.ID] = j })
	if err := t.Flush(ctx); err != nil {
		return nil, err
	}
	for _, id := range ids {
		if j := all[id]; j != nil {
			found = append(found, j)
			delete(all, id)
		}
	}
	return found, nil
}

// Promote implements core.Maintainer. First, plain INSERTs with a run_at become scheduled.
func (t *tx) Promote(ctx context.Context, d core.Due, limit int, promoted func(queue string)) (seen int, err error) {
	details := d.Details.(dueDetails)
	t.askNow()
	if details.arrived {
		if seen, err = t.placeArrived(ctx, limit, promoted); err != nil {
			return seen, err
		}
	}
	var ids []int64
	for _, queue := range details.scheduled {
		t.pick(&ids, "s"+queue, limit)
	}
	if err := t.Flush(ctx); err != nil {
		return seen, err
	}
	ids = ids[:min(limit, len(ids))]
	found, err := t.lockFree(ctx, ids)
	if err != nil {
		return seen, err
	}
	t.makeReady(slices.DeleteFunc(found, func(j *job) bool { return j.state != backends.StateScheduled || j.runAt > t.now }), promoted)
	return max(seen, len(ids)), nil
}

// placeArrived schedules plain INSERTs with a run_at, or makes them ready if that time has passed.
func (t *tx) placeArrived(ctx context.Context, limit int, promoted func(queue string)) (seen int, err error) {
	var ids []int64
	t.each(func(r *result) error {
		ids = append(ids, r.int(0))
		return nil
	}, "SELECT id FROM "+jobs+" WHERE lane = 'n' ORDER BY urgency, place, id LIMIT ?", limit)
	if err := t.Flush(ctx); err != nil {
		return 0, err
	}
	found, err := t.lockFree(ctx, ids)
	if err != nil {
		return 0, err
	}
	var ready []*job
	var later []int64
	var queues []string
	for _, j := range found {
		if j.state != backends.StateReady || j.runAt == 0 {
			continue
		}
		if queues = append(queues, j.Queue); j.runAt <= t.now {
			ready = append(ready, j)
		} else {
			later = append(later, j.ID)
		}
	}
	if len(later) > 0 {
		t.wrote = true
		slices.Sort(later)
		t.add("UPDATE " + byID + " SET state = 'scheduled' WHERE id IN (" + list(later) + ")")
	}
	t.makeReady(ready, promoted)
	t.register(queues)
	return len(ids), nil
}

// makeReady gives jobs new positions in the order of the list.
func (t *tx) makeReady(all []*job, promoted func(queue string)) {
	if len(all) == 0 {
		return
	}
	t.wrote = true
	rank := map[int64]int64{}
	var ids, ranks []int64
	for i, j := range all {
		rank[j.ID] = int64(i)
		ids = append(ids, j.ID)
		promoted(j.Queue)
	}
	slices.Sort(ids)
	for _, id := range ids {
		ranks = append(ranks, rank[id])
	}
	t.add("UPDATE "+byID+" SET state = 'ready', run_at = NULL, ready_at = ?, position = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + "+among(ids, ranks)+
		" WHERE id IN ("+list(ids)+")", t.now)
}

// LockDue implements core.Maintainer.
func (t *tx) LockDue(ctx context.Context, d core.Due, limit int) (rows []*core.Row, seen int, err error) {
	t.askNow()
	var ids []int64
	for _, lane := range d.Details.(dueDetails).due {
		t.pick(&ids, lane, limit)
	}
	if err := t.Flush(ctx); err != nil {
		return nil, 0, err
	}
	ids = ids[:min(limit, len(ids))]
	found, err := t.lockFree(ctx, ids)
	for _, j := range found {
		if j.state != backends.StateClaimed || j.due == 0 || j.due > t.now {
			continue
		}
		j.Cause = backends.CauseLeaseEnded
		if j.deadline != 0 && j.deadline <= j.due {
			j.Cause = backends.CauseTimedOut
		}
		rows = append(rows, &j.Row)
	}
	return rows, len(ids), err
}

// LockLost implements core.Maintainer. Each scan finds one lost owner.
func (t *tx) LockLost(ctx context.Context, d core.Due, limit int) (rows []*core.Row, seen int, err error) {
	owner := d.Lost[0]
	t.askNow()
	var ids []int64
	alive := false
	t.each(func(*result) error {
		alive = true
		return nil
	}, "SELECT 1 FROM qsidecar_hosts WHERE host = ? AND NOT dead", owner) // the owner can have joined since the scan
	t.each(func(r *result) error {
		ids = append(ids, r.int(0))
		return nil
	}, "SELECT id FROM "+jobs+" WHERE lane = ? ORDER BY urgency, place, id LIMIT ?", ownerLane(owner), limit)
	if err := t.Flush(ctx); err != nil || alive {
		return nil, 0, err
	}
	found, err := t.lockFree(ctx, ids)
	var timed []int64
	for _, j := range found {
		switch {
		case j.state != backends.StateClaimed || int64(j.Owner) != owner:
		case j.Lease > 0:
			timed = append(timed, j.ID)
		default:
			j.Cause = backends.CauseSidecarLost
			rows = append(rows, &j.Row)
		}
	}
	if len(timed) > 0 {
		t.wrote = true
		slices.Sort(timed)
		t.add("UPDATE " + byID + " SET owner = 0 WHERE id IN (" + list(timed) + ")")
	}
	return rows, len(ids), err
}

// Forget implements core.Maintainer.
func (t *tx) Forget(ctx context.Context, d core.Due) error {
	var empty []int64
	for _, host := range d.Details.(dueDetails).dead {
		t.each(func(r *result) error {
			if r.int(0) == 0 {
				empty = append(empty, host)
			}
			return nil
		}, "SELECT EXISTS (SELECT 1 FROM "+jobs+" WHERE lane = ?)", ownerLane(host))
	}
	if err := t.Flush(ctx); err != nil || len(empty) == 0 {
		return err
	}
	t.wrote = true
	slices.Sort(empty)
	t.add("DELETE FROM qsidecar_hosts WHERE host IN (" + list(empty) + ") AND dead")
	return nil
}

// since converts a time to an argument. The zero time is before all stored ones.
func since(t time.Time) instant {
	if t.IsZero() {
		return 1
	}
	return instant(t.UnixMicro())
}

// Prune implements core.Maintainer.
func (t *tx) Prune(ctx context.Context, what core.Pruned, from time.Time, limit int) (deleted, found int, last time.Time, err error) {
	prune := t.pruneJobs
	if what == core.PruneKeys {
		prune = t.pruneKeys
	}
	var b pruned
	err = prune(ctx, &b, since(from), limit)
	return b.deleted, b.found, b.last.time(), err
}

// pruned is what one transaction pruned.
type pruned struct {
	deleted, found int
	last           instant // the last row that was found; 0: none
}

// pruneJobs deletes finished jobs whose retention is over. It leaves alone jobs that another transaction
// has locked, with their rows in qsidecar_expiring: another sidecar prunes them.
func (t *tx) pruneJobs(ctx context.Context, b *pruned, from instant, most int) error {
	s := t.s
	var first instant
	var ids []int64
	t.askNow()
	t.each(func(r *result) error {
		if first == 0 {
			first = r.instant(0)
		}
		ids, b.last = append(ids, r.int(1)), r.instant(0)
		return nil
	}, "SELECT expires_at, job FROM qsidecar_expiring WHERE expires_at >= ? AND expires_at <= "+s.sql.clock+" ORDER BY expires_at, job LIMIT ?", from, most)
	if err := t.Flush(ctx); err != nil || len(ids) == 0 {
		return err
	}
	b.found = len(ids)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	var over, failed []int64
	seen := map[int64]bool{}
	t.each(func(r *result) error {
		id, state, expires := r.int(0), backends.State(r.text(1)), r.instant(2)
		seen[id] = true
		if (state == backends.StateDone || state == backends.StateDead) && expires != 0 && expires <= t.now {
			over = append(over, id)
			if r.int(3) != 0 {
				failed = append(failed, id)
			}
		}
		return nil
	}, "SELECT id, state, expires_at, last_error IS NOT NULL FROM "+byID+" WHERE id IN ("+list(ids)+") ORDER BY id FOR UPDATE"+s.sql.skip)
	if err := t.Flush(ctx); err != nil {
		return err
	}
	elsewhere, err := t.there(ctx, slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return seen[id] }))
	if err != nil {
		return err
	}
	b.deleted = len(over)
	if len(over) > 0 { // their rows in qsidecar_keys have their final state already
		t.wrote = true
		t.add(deleteByID + " WHERE id IN (" + list(over) + ")")
	}
	if len(failed) > 0 {
		t.add("DELETE FROM qsidecar_failures WHERE job IN (" + list(failed) + ")")
	}
	if ids = slices.DeleteFunc(ids, func(id int64) bool { return elsewhere[id] }); len(ids) == 0 {
		return nil
	}
	// This is one walk along the primary key. Between the first and the last row there are only rows of
	// these jobs, of locked jobs, and new ones.
	t.wrote = true
	t.add("DELETE FROM qsidecar_expiring WHERE expires_at >= ? AND expires_at <= ? AND job IN ("+list(ids)+")", first, b.last)
	return nil
}

// there returns which of the jobs exist, locked or not.
func (t *tx) there(ctx context.Context, ids []int64) (found map[int64]bool, err error) {
	found = map[int64]bool{}
	if len(ids) == 0 {
		return found, nil
	}
	t.each(func(r *result) error {
		found[r.int(0)] = true
		return nil
	}, "SELECT id FROM qsidecar_jobs WHERE id IN ("+list(ids)+")")
	return found, t.Flush(ctx)
}

// pruneKeys deletes keys whose jobs have ended and whose lifetime is over, in the order of queue and key.
// Every transaction that locks keys uses this order.
func (t *tx) pruneKeys(ctx context.Context, b *pruned, from instant, most int) error {
	s := t.s
	over := map[string][][]byte{}
	t.askNow()
	t.each(func(r *result) error {
		over[r.text(0)] = append(over[r.text(0)], r.bytes(1))
		b.found, b.last = b.found+1, r.instant(2)
		return nil
	}, "SELECT queue, `key`, over_at FROM qsidecar_keys FORCE INDEX (qsidecar_keys_over) WHERE over_at >= ? AND over_at <= "+s.sql.clock+" ORDER BY over_at LIMIT ?", from, most)
	if err := t.Flush(ctx); err != nil || b.found == 0 {
		return err
	}
	t.wrote = true
	for _, queue := range slices.Sorted(maps.Keys(over)) {
		slices.SortFunc(over[queue], bytes.Compare)
		args := []any{queue, t.now}
		for _, k := range over[queue] {
			args = append(args, k)
		}
		t.add("DELETE FROM qsidecar_keys WHERE queue = ? AND over_at <= ? AND `key` IN ("+marks(len(args)-2)+")", args...)
		t.each(func(r *result) error {
			b.deleted += int(r.int(0))
			return nil
		}, "SELECT ROW_COUNT()")
	}
	return t.Flush(ctx)
}
