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
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
)

// MarkDead implements core.Maintainer.
func (t *tx) MarkDead(_ context.Context, suspects []backends.Suspect) error {
	s := t.s
	t.wrote = true
	for _, x := range slices.SortedFunc(slices.Values(suspects), func(a, b backends.Suspect) int { return cmp.Compare(int64(a.Host), int64(b.Host)) }) {
		// The condition is that of backends.HeartbeatExpired.
		t.Add("UPDATE qsidecar_sidecars SET dead = 1 WHERE sidecar = ? AND heartbeats = ? AND NOT dead AND (expires_at <= "+s.sql.clock+
			" OR NOT has_left AND expires_at > "+s.sql.clock+" + INTERVAL ? MICROSECOND)", int64(x.Host), int64(x.Heartbeats), x.Timeout.Microseconds())
	}
	return nil
}

// findDue queues a statement that finds the due rows of a `segment`, in their order, from those on that are due at
// first. It does not lock them: lockRows locks them by id.
func (t *tx) findDue(ids *[]int64, segment string, first *time.Time, limit int) {
	t.Ints(ids, "SELECT "+table.NoPushdown+"id FROM "+table.Jobs+" WHERE segment = ? AND "+table.Uncovered+" AND urgency = 0 AND sort_key >= ? AND sort_key <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "+t.s.sql.clock+") ORDER BY urgency, sort_key, id LIMIT ?", segment, first.UnixMicro(), limit)
}

// lockFound sends the queries for ids, and locks at most limit of the rows that no other transaction has locked.
// seen is how many rows were found. If only isn't nil, it leaves out other ones.
func (t *tx) lockFound(ctx context.Context, ids *[]int64, only []int64, limit int) (rows []*job, seen int, err error) {
	if err := t.Flush(ctx); err != nil {
		return nil, 0, err
	}
	*ids = among(*ids, only)
	*ids = (*ids)[:min(limit, len(*ids))]
	rows, err = t.lockRows(ctx, *ids, t.s.sql.skip)
	return rows, len(*ids), err
}

// among returns those of ids that are in only; nil: all.
func among(ids, only []int64) []int64 {
	if only == nil {
		return ids
	}
	return slices.DeleteFunc(ids, func(id int64) bool { _, found := slices.BinarySearch(only, id); return !found })
}

// FindScheduled implements core.Maintainer.
func (t *tx) FindScheduled(ctx context.Context, d core.Due, limit int) ([]core.Found, error) {
	details := d.Details.(dueDetails)
	var ids []int64
	if details.arrived {
		t.findArrived(&ids, limit)
	}
	for _, queue := range details.scheduled {
		t.findDue(&ids, "s"+queue, d.RunAt, limit)
	}
	return t.withQueues(ctx, &ids, limit)
}

// FindExpired implements core.Maintainer.
func (t *tx) FindExpired(ctx context.Context, from time.Time, limit int) ([]core.Found, error) {
	var ids []int64
	t.Ints(&ids, "SELECT job FROM qsidecar_expiring WHERE expires_at >= ? AND expires_at <= "+t.s.sql.clock+" ORDER BY expires_at, job LIMIT ?", since(from), limit)
	return t.withQueues(ctx, &ids, limit)
}

// withQueues sends the queries for ids, and returns the jobs that exist.
func (t *tx) withQueues(ctx context.Context, ids *[]int64, limit int) (all []core.Found, err error) {
	if err := t.Flush(ctx); err != nil || len(*ids) == 0 {
		return nil, err
	}
	t.Each(func(r *session.Result) { all = append(all, core.Found{ID: r.Int(0), Queue: r.Text(1)}) },
		"SELECT id, queue FROM qsidecar_jobs WHERE id IN ("+session.List((*ids)[:min(limit, len(*ids))])+")")
	return all, t.Flush(ctx)
}

// Promote implements core.Maintainer. First, plain INSERTs with a run_at become scheduled.
func (t *tx) Promote(ctx context.Context, d core.Due, only []int64, limit int, promoted func(queue string)) (seen int, err error) {
	details := d.Details.(dueDetails)
	t.askNow()
	most := limit
	if only != nil {
		most += backends.MaxObstacles // they are among those before which the refused ones come
	}
	if details.arrived {
		if seen, err = t.placeArrived(ctx, only, most, promoted); err != nil {
			return seen, err
		}
	}
	var ids []int64
	for _, queue := range details.scheduled {
		t.findDue(&ids, "s"+queue, d.RunAt, most)
	}
	found, n, err := t.lockFound(ctx, &ids, only, limit)
	if err != nil {
		return seen, err
	}
	t.promote(slices.DeleteFunc(found, func(j *job) bool { return j.state != backends.StateScheduled || j.runAt > t.now }), promoted)
	return max(seen, n), nil
}

// placeArrived schedules plain INSERTs with a run_at, or makes them ready if that time has passed.
func (t *tx) placeArrived(ctx context.Context, only []int64, limit int, promoted func(queue string)) (seen int, err error) {
	var ids []int64
	t.findArrived(&ids, limit)
	found, seen, err := t.lockFound(ctx, &ids, only, limit)
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
		t.Add("UPDATE " + table.ByID + " SET state = 'scheduled' WHERE id IN (" + session.List(later) + ")")
	}
	t.promote(ready, promoted)
	t.register(queues)
	return seen, nil
}

// findArrived queues a statement that finds plain INSERTs with a run_at.
func (t *tx) findArrived(ids *[]int64, limit int) {
	t.Ints(ids, "SELECT id FROM "+table.Jobs+" WHERE segment = 'n' ORDER BY urgency, sort_key, id LIMIT ?", limit)
}

// promote makes scheduled jobs ready.
func (t *tx) promote(all []*job, promoted func(queue string)) {
	for _, j := range all {
		promoted(j.Queue)
	}
	t.makeReady(all, 0, "run_at = NULL")
}

// makeReady queues the UPDATE that makes jobs ready. They get new positions in the order of the list, from the
// first one on. It also sets other columns.
func (t *tx) makeReady(all []*job, first int, set string) {
	if len(all) == 0 {
		return
	}
	t.wrote = true
	rank := map[int64]int64{}
	for i, j := range all {
		rank[j.ID] = int64(first + i)
	}
	ids := slices.Sorted(maps.Keys(rank))
	ranks := make([]int64, len(ids))
	for i, id := range ids {
		ranks[i] = rank[id]
	}
	t.Add("UPDATE "+table.ByID+" SET state = 'ready', ready_at = ?, position = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + "+table.Among(ids, ranks)+
		", "+set+" WHERE id IN ("+session.List(ids)+")", t.now)
}

// LockDue implements core.Maintainer.
func (t *tx) LockDue(ctx context.Context, d core.Due, limit int) (rows []*core.Row, seen int, err error) {
	t.askNow()
	var ids []int64
	for _, segment := range d.Details.(dueDetails).due {
		t.findDue(&ids, segment, d.DueAt, limit)
	}
	found, seen, err := t.lockFound(ctx, &ids, nil, limit)
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
	return rows, seen, err
}

// LockLost implements core.Maintainer. Each scan finds one lost owner.
func (t *tx) LockLost(ctx context.Context, d core.Due, limit int) (rows []*core.Row, seen int, err error) {
	owner := d.Lost[0]
	t.askNow()
	var ids []int64
	alive := false
	t.Bool(&alive, "SELECT 1 FROM qsidecar_sidecars WHERE sidecar = ? AND NOT dead", owner) // the owner can have joined since the scan
	t.Ints(&ids, "SELECT id FROM "+table.Jobs+" WHERE segment = ? ORDER BY urgency, sort_key, id LIMIT ?", table.OwnerSegment(owner), limit)
	if err := t.Flush(ctx); err != nil || alive {
		return nil, 0, err
	}
	found, err := t.lockRows(ctx, ids, t.s.sql.skip)
	for _, j := range found {
		if j.state == backends.StateClaimed && int64(j.Owner) == owner {
			j.Cause = backends.CauseSidecarLost
			rows = append(rows, &j.Row)
		}
	}
	return rows, len(ids), err
}

// Forget implements core.Maintainer.
func (t *tx) Forget(ctx context.Context, d core.Due) error {
	dead := d.Details.(dueDetails).dead
	busy := make([]bool, len(dead))
	for i, host := range dead {
		t.Bool(&busy[i], "SELECT EXISTS (SELECT 1 FROM "+table.Jobs+" WHERE segment = ?)", table.OwnerSegment(host))
	}
	if err := t.Flush(ctx); err != nil {
		return err
	}
	for i, host := range dead {
		if !busy[i] {
			t.wrote = true
			t.Add("DELETE FROM qsidecar_sidecars WHERE sidecar = ? AND dead", host)
		}
	}
	return nil
}

// since converts a time to an argument. The zero time is before all stored ones.
func since(t time.Time) session.Instant {
	if t.IsZero() {
		return 1
	}
	return session.Instant(t.UnixMicro())
}

// Prune implements core.Maintainer.
func (t *tx) Prune(ctx context.Context, what core.Pruned, from time.Time, only []int64, limit int) (deleted, found int, last time.Time, err error) {
	var b pruned
	if what == core.PruneKeys {
		err = t.pruneKeys(ctx, &b, since(from), limit)
	} else {
		err = t.pruneJobs(ctx, &b, since(from), only, limit)
	}
	return b.deleted, b.found, b.last.Time(), err
}

// pruned is what one transaction pruned.
type pruned struct {
	deleted, found int
	last           session.Instant // the last row that was found; 0: none
}

// pruneJobs deletes finished jobs whose retention is over. It leaves alone jobs that another transaction
// has locked, with their rows in qsidecar_expiring: another sidecar prunes them.
func (t *tx) pruneJobs(ctx context.Context, b *pruned, from session.Instant, only []int64, most int) error {
	s := t.s
	if only != nil {
		most += backends.MaxObstacles
	}
	var first session.Instant
	var ids []int64
	t.askNow()
	t.Each(func(r *session.Result) {
		if first == 0 {
			first = r.Instant(0)
		}
		ids, b.last = append(ids, r.Int(1)), r.Instant(0)
	}, "SELECT expires_at, job FROM qsidecar_expiring WHERE expires_at >= ? AND expires_at <= "+s.sql.clock+" ORDER BY expires_at, job LIMIT ?", from, most)
	if err := t.Flush(ctx); err != nil || len(ids) == 0 {
		return err
	}
	slices.Sort(ids)
	if ids = among(slices.Compact(ids), only); len(ids) == 0 {
		return nil
	}
	b.found = len(ids)
	rows, err := t.lockRows(ctx, ids, s.sql.skip)
	if err != nil {
		return err
	}
	var over, failed []int64
	free := map[int64]bool{}
	for _, j := range rows {
		free[j.ID] = true
		if (j.state == backends.StateDone || j.state == backends.StateDead) && j.expiresAt != 0 && j.expiresAt <= t.now {
			over = append(over, j.ID)
			if j.Failed {
				failed = append(failed, j.ID)
			}
		}
	}
	locked, err := t.existing(ctx, slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return free[id] }))
	if err != nil {
		return err
	}
	b.deleted = len(over)
	if len(over) > 0 { // their rows in qsidecar_keys have their final state already
		t.wrote = true
		t.Add(table.DeleteByID + " WHERE id IN (" + session.List(over) + ")")
	}
	if len(failed) > 0 {
		t.Add("DELETE FROM qsidecar_failures WHERE job IN (" + session.List(failed) + ")")
	}
	if ids = slices.DeleteFunc(ids, func(id int64) bool { _, is := slices.BinarySearch(locked, id); return is }); len(ids) == 0 {
		return nil
	}
	// This is one walk along the primary key. Between the first and the last row there are only rows of
	// these jobs, of locked jobs, and new ones.
	t.wrote = true
	t.Add("DELETE FROM qsidecar_expiring WHERE expires_at >= ? AND expires_at <= ? AND job IN ("+session.List(ids)+")", first, b.last)
	return nil
}

// existing returns which of the jobs exist, locked or not, in ascending order.
func (t *tx) existing(ctx context.Context, ids []int64) (found []int64, err error) {
	if len(ids) > 0 {
		t.Ints(&found, "SELECT id FROM qsidecar_jobs WHERE id IN ("+session.List(ids)+") ORDER BY id")
		err = t.Flush(ctx)
	}
	return found, err
}

// pruneKeys deletes keys whose jobs have ended and whose lifetime is over, in the order of queue and key.
// Every transaction that locks keys uses this order.
func (t *tx) pruneKeys(ctx context.Context, b *pruned, from session.Instant, most int) error {
	s := t.s
	over := map[string][][]byte{}
	t.askNow()
	t.Each(func(r *session.Result) {
		over[r.Text(0)] = append(over[r.Text(0)], r.Bytes(1))
		b.found, b.last = b.found+1, r.Instant(2)
	}, "SELECT queue, `key`, prune_at FROM qsidecar_keys FORCE INDEX (qsidecar_keys_expiring) WHERE prune_at >= ? AND prune_at <= "+s.sql.clock+" ORDER BY prune_at LIMIT ?", from, most)
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
		t.Add("DELETE FROM qsidecar_keys WHERE queue = ? AND prune_at <= ? AND `key` IN ("+session.Marks(len(args)-2)+")", args...)
		t.Each(func(r *session.Result) { b.deleted += int(r.Int(0)) }, "SELECT ROW_COUNT()")
	}
	return t.Flush(ctx)
}
