package mysql

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/claim"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
)

// dueDetails are the details of a core.Due that the Maintainer's methods use (core.Due.Details).
type dueDetails struct {
	arrived   bool     // there are plain INSERTs with a run_at or start_before
	scheduled []string // queues with jobs that are due, the longest due first
	due       []string // values of `segment` of claimed jobs that are due: their lease or time limit is over
	dead      []int64  // dead sidecars
}

// FindDue implements core.Driver. It searches for claims of owners that were not alive at the previous scan.
// If other sidecars are alive now, it scans again.
func (a access) FindDue(ctx context.Context, q core.DueQuery) (o core.Due, err error) {
	var alive []int64
	if p := a.alive.Load(); p != nil {
		alive = *p
	}
	for range 4 {
		x := newDueRows(q)
		if err := a.readOnce(ctx, func(_ context.Context, t *tx) error {
			t.queryDue(q, slices.Concat(alive, q.Refused), x)
			return nil
		}); err != nil {
			return o, err
		}
		if o = x.result(); q.Watched || slices.Equal(alive, x.alive) {
			break
		}
		a.alive.Store(&x.alive)
		alive = x.alive
	}
	o.Groups = o.Groups || a.cleaner.notes.Load()
	return o, nil
}

// dueRows collects the rows that tx.queryDue returns.
type dueRows struct {
	core.Due
	details        dueDetails
	waiting        map[string]int // the index of each queue in DueQuery.Waiting
	now            int64
	scheduled, due []segmentStart
	alive          []int64
}

// segmentStart is the first job of a `segment`, or of a queue.
type segmentStart struct {
	segment string
	sortKey int64
}

func newDueRows(q core.DueQuery) *dueRows {
	x := &dueRows{waiting: make(map[string]int, len(q.Waiting)), Due: core.Due{Ready: make([]bool, len(q.Waiting)), Returns: make([]int64, len(q.Waiting))}}
	for i, queue := range q.Waiting {
		x.waiting[queue] = i
	}
	return x
}

func (d *dueRows) read(r *session.Result) {
	name, n := r.Text(1), r.Int(2)
	switch r.Text(0) {
	case "now":
		d.now, d.At = n, *timeOf(n)
	case "arrived":
		d.Promote, d.details.arrived = true, true
	case "scheduled":
		d.scheduled = append(d.scheduled, segmentStart{name, n})
	case "due":
		d.due = append(d.due, segmentStart{name, n})
	case "groups":
		d.Groups = true
	case "alive":
		d.alive = append(d.alive, n)
	case "dead":
		d.Dead, d.details.dead = true, append(d.details.dead, n)
	case "cancelled":
		sidecar, err := strconv.ParseInt(name, 10, 64)
		if err == nil { // the server has written the number
			d.Cancelled = append(d.Cancelled, backends.Token{Sidecar: backends.Identity(sidecar), Number: uint64(n)})
		}
	case "owner":
		d.Lost = []int64{n}
	case "schedule":
		at := time.UnixMilli(n)
		d.FireAt = &at
	case "batches":
		d.Batches = true
	case "never":
		d.Never = n
	case "expiring":
		d.ExpireAt = timeOf(n)
	case "expired":
		d.Jobs = timeOf(n)
	case "keys":
		d.Keys = timeOf(n)
	case "ready", "requeues":
		switch i, ok := d.waiting[name]; {
		case !ok:
		case r.Text(0) == "ready":
			d.Ready[i] = true
		default:
			d.Returns[i] = n
		}
	}
}

// result converts the rows to a core.Due.
func (d *dueRows) result() core.Due {
	d.details.scheduled, d.RunAt = d.overdue(d.scheduled)
	d.details.due, d.DueAt = d.overdue(d.due)
	d.Lost = slices.DeleteFunc(d.Lost, func(owner int64) bool { return owner == 0 || slices.Contains(d.alive, owner) })
	d.MoreLost, d.Details = len(d.Lost) > 0, d.details
	return d.Due
}

// overdue returns each `segment` whose first job is due, and the time of the first job of all.
func (d *dueRows) overdue(all []segmentStart) (segments []string, first *time.Time) {
	slices.SortFunc(all, func(a, b segmentStart) int { return cmp.Compare(a.sortKey, b.sortKey) })
	for _, p := range all {
		if p.sortKey == int64(forever) {
			continue
		}
		if p.sortKey <= d.now {
			segments = append(segments, p.segment)
		}
		if first == nil {
			first = timeOf(p.sortKey)
		}
	}
	return segments, first
}

func timeOf(micros int64) *time.Time {
	t := session.Instant(micros).Time()
	return &t
}

// queryDue queues the statement of a scan. It holds everything that an idle sidecar queries in a second.
func (t *tx) queryDue(q core.DueQuery, alive []int64, x *dueRows) {
	sql := t.s.sql
	t.Each(x.read, sql.dueNow)
	part := func(sql string, args ...any) {
		t.Text("\nUNION ALL ")
		t.Text(sql, args...)
	}
	part(sql.dueArrived)
	if q.Schedules != core.NoSchedules {
		part(sql.dueSchedule, int64(q.Schedules))
	}
	if !q.Watched {
		part(sql.dueSidecars)
		part(sql.dueGroups)
		if q.Cancelled {
			part(sql.dueBatches)
		}
	}
	t.queryFirstDue(q, part)
	if q.Owners {
		part(sql.dueOwner, otherOwners(alive))
	}
	if q.Cancelled {
		part(sql.dueExpiring, since(q.DueFrom))
		part(sql.dueCancelled, int64(q.Sidecar))
	}
	if q.Prune {
		part(sql.dueNever)
		part(sql.dueExpired, since(q.JobsFrom))
		part(sql.dueKeys, since(q.KeysFrom))
	}
	if len(q.Waiting) == 0 {
		return
	}
	segments := make([][]cursor.Segment, len(q.Waiting))
	for _, p := range q.Pieces {
		segments[p.Queue] = append(segments[p.Queue], p.Segment)
	}
	for i, queue := range q.Waiting {
		ready := table.StateSegment(backends.StateReady, queue)
		part(sql.dueReady, queue, ready, ready, session.Part{SQL: table.Within(segments[i])})
	}
	part(sql.dueRequeues, session.Texts(q.Waiting))
}

// mostParts is for how many queues queryFirstDue has a SELECT each. The server needs some 70 µs to plan one.
const mostParts = 16

// queryFirstDue adds the parts for the jobs and claims that are due first. A search of all queues and sidecars reads some rows
// for each of them. It also passes all index entries of jobs that are gone and can't be purged yet, because the server doesn't use
// DueFrom for a condition on another table's row. A watched sidecar searches only its own claims and waiting queues, and from
// DueFrom on.
func (t *tx) queryFirstDue(q core.DueQuery, part func(sql string, args ...any)) {
	sql, from := t.s.sql, session.Part{SQL: "IS NOT NULL"}
	if !q.DueFrom.IsZero() {
		from = session.Part{SQL: ">= " + strconv.FormatInt(q.DueFrom.UnixMicro(), 10)}
	}
	if !q.Watched {
		part(sql.dueScheduled, from)
		part(sql.dueClaimed, from)
		return
	}
	if len(q.Waiting) > mostParts {
		part(sql.dueScheduledAmong, from, session.Texts(q.Waiting))
	} else {
		for _, queue := range q.Waiting {
			scheduled := table.StateSegment(backends.StateScheduled, queue)
			part(sql.dueScheduledOf, queue, scheduled, scheduled, from)
		}
	}
	for _, owner := range slices.Compact([]int64{int64(q.Sidecar), 0}) {
		segment := table.OwnerSegment(owner)
		part(sql.dueClaimedOf, segment, segment, segment, from)
	}
}

// otherOwners returns the condition that a `segment` holds claims of an owner that is not one of the hosts.
// It consists of the gaps between the values of `segment` of the hosts.
func otherOwners(hosts []int64) session.Part {
	segments := []string{table.OwnerSegment(0)}
	for _, h := range hosts {
		segments = append(segments, table.OwnerSegment(h))
	}
	slices.Sort(segments)
	from, end := table.StateSegments(backends.StateClaimed)
	var ors []string
	for _, segment := range slices.Compact(segments) {
		ors = append(ors, "segment > '"+from+"' AND segment < '"+segment+"'")
		from = segment
	}
	return session.Part{SQL: "(" + strings.Join(append(ors, "segment > '"+from+"' AND segment < '"+end+"'"), " OR ") + ")"}
}

// LockExpired implements core.Expirer. It deletes rows of qsidecar_expiring, except those whose jobs other transactions have locked.
func (t *tx) LockExpired(ctx context.Context, d core.Due, only []int64, limit int) (all []core.Expired, seen int, err error) {
	most := limit
	if only != nil {
		most += backends.MaxObstacles
	}
	var first, last session.Instant
	var ids []int64
	t.askNow()
	t.Each(func(r *session.Result) {
		if first == 0 {
			first = r.Instant(0)
		}
		ids, last = append(ids, r.Int(1)), r.Instant(0)
	}, t.s.sql.expiring, session.Instant(d.ExpireAt.UnixMicro()), most)
	if err := t.Flush(ctx); err != nil {
		return nil, 0, err
	}
	seen = len(ids)
	slices.Sort(ids)
	if ids = among(slices.Compact(ids), only); len(ids) == 0 {
		return nil, seen, nil
	}
	rows, err := t.lockRows(ctx, ids, t.s.sql.lockFree)
	if err != nil {
		return nil, seen, err
	}
	free := map[int64]bool{}
	t.expiring = map[int64]*job{}
	for _, j := range rows {
		free[j.ID] = true
		if (j.state == backends.StateReady || j.state == backends.StateScheduled) && j.startBefore != 0 && j.startBefore <= t.now {
			t.expiring[j.ID] = j
			all = append(all, core.Expired{ID: j.ID, Queue: j.Queue, Remove: j.removed})
		}
	}
	locked, err := t.existing(ctx, slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return free[id] }))
	if err != nil {
		return nil, seen, err
	}
	if ids = slices.DeleteFunc(ids, func(id int64) bool { _, is := slices.BinarySearch(locked, id); return is }); len(ids) > 0 {
		t.wrote = true
		t.Add(t.s.sql.deleteExpiring, first, last, session.IDs(ids))
	}
	return all, seen, nil
}

// Expire implements core.Expirer, for the rows of LockExpired. Claims end expired jobs by themselves.
func (t *tx) Expire(jobs []core.Expired) {
	t.wrote = true
	var all []*core.Row
	var dead []*job
	var slots []int64
	var groups []core.Group
	for _, e := range jobs {
		j := t.expiring[e.ID]
		if all = append(all, &j.Row); e.Remove {
			j.Change = core.Change{Kind: core.Deleted, State: backends.StateDeleted}
		} else {
			j.Fence = claim.NextFence(j.Fence, t.now)
			j.Change = core.Change{
				Kind: core.Ended, State: backends.StateDead, Attempts: j.Attempts, Losses: j.Losses, PrefetchLosses: j.PrefetchLosses,
				Cause: backends.CauseExpired, Message: backends.ExpiredMessage,
			}
			dead = append(dead, j)
		}
		if group := cmp.Or(j.group, j.Group); group != "" {
			slots, groups = append(slots, j.ID), append(groups, core.Group{Queue: j.Queue, Name: group})
		}
	}
	byID := func(a, b *core.Row) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortFunc(all, byID)
	slices.SortFunc(dead, compareIDs)
	for part := range slices.Chunk(dead, rowsAtOnce) {
		list := idsOf(part)
		t.Add(t.s.sql.cancelWaiting, byRow("id, "+list, part, func(j *job) any { return j.Fence }), nil, session.Part{SQL: list})
	}
	t.Change(all, func(*core.Row) {}, nil)
	if len(slots) > 0 {
		slices.Sort(slots)
		slices.SortFunc(groups, core.CompareGroups)
		t.LeaveGroups(slots)
		t.NoteGroups(slices.Compact(groups))
	}
}

// MarkDead implements core.Maintainer.
func (t *tx) MarkDead(_ context.Context, suspects []backends.Suspect) error {
	s := t.s
	t.wrote = true
	for _, x := range slices.SortedFunc(slices.Values(suspects), func(a, b backends.Suspect) int { return cmp.Compare(int64(a.Sidecar), int64(b.Sidecar)) }) {
		t.Add(s.sql.markDead, int64(x.Sidecar), int64(x.Heartbeats), x.Timeout.Microseconds())
	}
	return nil
}

// findDue queues a statement that finds the due rows of a `segment`, in their order, from those on that are due at
// first. It does not lock them: lockRows locks them by id.
func (t *tx) findDue(ids *[]int64, segment string, first *time.Time, limit int) {
	t.Ints(ids, t.s.sql.findDue, segment, first.UnixMicro(), limit)
}

// lockFound sends the queries for ids, and locks at most limit of the rows that no other transaction has locked.
// seen is how many rows were found. If only isn't nil, it leaves out other ones.
func (t *tx) lockFound(ctx context.Context, ids *[]int64, only []int64, limit int) (rows []*job, seen int, err error) {
	if err := t.Flush(ctx); err != nil {
		return nil, 0, err
	}
	*ids = among(*ids, only)
	*ids = (*ids)[:min(limit, len(*ids))]
	rows, err = t.lockRows(ctx, *ids, t.s.sql.lockFree)
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
		t.findDue(&ids, table.StateSegment(backends.StateScheduled, queue), d.RunAt, limit)
	}
	return t.withQueues(ctx, &ids, limit)
}

// FindExpired implements core.Maintainer.
func (t *tx) FindExpired(ctx context.Context, from time.Time, limit int) ([]core.Found, error) {
	var ids []int64
	t.Each(func(r *session.Result) { ids = append(ids, r.Int(1)) }, t.s.sql.prunable, since(from), limit)
	return t.withQueues(ctx, &ids, limit)
}

// withQueues sends the queries for ids, and returns the jobs that exist.
func (t *tx) withQueues(ctx context.Context, ids *[]int64, limit int) (all []core.Found, err error) {
	if err := t.Flush(ctx); err != nil || len(*ids) == 0 {
		return nil, err
	}
	t.Each(func(r *session.Result) { all = append(all, core.Found{ID: r.Int(0), Queue: r.Text(1)}) },
		t.s.sql.queuesOf, session.IDs((*ids)[:min(limit, len(*ids))]))
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
		t.findDue(&ids, table.StateSegment(backends.StateScheduled, queue), d.RunAt, most)
	}
	found, n, err := t.lockFound(ctx, &ids, only, limit)
	if err != nil {
		return seen, err
	}
	t.promote(slices.DeleteFunc(found, func(j *job) bool { return j.state != backends.StateScheduled || j.runAt > t.now }), promoted)
	return max(seen, n), nil
}

// placeArrived schedules plain INSERTs with a run_at, or makes them ready if that time has passed. It stores when they expire.
func (t *tx) placeArrived(ctx context.Context, only []int64, limit int, promoted func(queue string)) (seen int, err error) {
	var ids []int64
	t.findArrived(&ids, limit)
	found, seen, err := t.lockFound(ctx, &ids, only, limit)
	if err != nil {
		return 0, err
	}
	found = slices.DeleteFunc(found, func(j *job) bool { return j.state != backends.StateReady || j.runAt == 0 })
	var ready []*job
	var later []int64
	var queues []string
	for _, j := range found {
		if queues = append(queues, j.Queue); j.runAt <= t.now {
			ready = append(ready, j)
		} else {
			later = append(later, j.ID)
		}
	}
	if len(later) > 0 {
		t.wrote = true
		slices.Sort(later)
		t.Add(t.s.sql.scheduleArrived, session.IDs(later))
	}
	t.expireLater(found)
	t.promote(ready, promoted)
	t.register(queues)
	return seen, nil
}

// findArrived queues a statement that finds plain INSERTs with a run_at or start_before.
func (t *tx) findArrived(ids *[]int64, limit int) {
	t.Ints(ids, t.s.sql.findArrived, limit)
}

// promote makes scheduled jobs ready.
func (t *tx) promote(all []*job, promoted func(queue string)) {
	for _, j := range all {
		if j.group != "" {
			promoted("")
		} else {
			promoted(j.Queue)
		}
	}
	t.makeReady(all, 0, t.s.sql.promote)
}

// makeReady queues an UPDATE that makes jobs ready. They get new positions in the order of the list, from the
// first one on. more are the values of other columns.
func (t *tx) makeReady(all []*job, first int, sql string, more ...any) {
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
	t.Add(sql, slices.Concat([]any{t.now, table.Among(ids, ranks)}, more, []any{session.IDs(ids)})...)
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
	t.Bool(&alive, t.s.sql.lives, owner) // the owner can have joined since the scan
	t.Ints(&ids, t.s.sql.owned, table.OwnerSegment(owner), limit)
	if err := t.Flush(ctx); err != nil || alive {
		return nil, 0, err
	}
	found, err := t.lockRows(ctx, ids, t.s.sql.lockFree)
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
	var lost []int64
	t.Ints(&lost, t.s.sql.lostOwners)
	for i, host := range dead {
		t.Bool(&busy[i], t.s.sql.anyInSegment, table.OwnerSegment(host))
	}
	if err := t.Flush(ctx); err != nil {
		return err
	}
	for i, host := range dead {
		if !busy[i] {
			t.wrote = true
			t.Add(t.s.sql.forget, host)
		}
	}
	for _, owner := range lost {
		t.wrote = true
		t.Add(t.s.sql.forgetOwner, owner)
	}
	return nil
}

// ForgetCancelled implements core.Maintainer.
func (t *tx) ForgetCancelled(owner backends.Identity, claims []backends.Token) {
	t.wrote = true
	for _, c := range claims {
		t.Add(t.s.sql.forgetCancelled, int64(owner), int64(c.Sidecar), int64(c.Number))
	}
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
// has locked, with their rows in qsidecar_prunable: another sidecar prunes them.
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
	}, s.sql.prunable, from, most)
	if err := t.Flush(ctx); err != nil || len(ids) == 0 {
		return err
	}
	slices.Sort(ids)
	if ids = among(slices.Compact(ids), only); len(ids) == 0 {
		return nil
	}
	b.found = len(ids)
	rows, err := t.lockRows(ctx, ids, s.sql.lockFree)
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
		t.Add(s.sql.deleteDone, session.IDs(over))
	}
	if len(failed) > 0 {
		t.Add(s.sql.deleteFailures, session.IDs(failed))
	}
	if ids = slices.DeleteFunc(ids, func(id int64) bool { _, is := slices.BinarySearch(locked, id); return is }); len(ids) == 0 {
		return nil
	}
	t.wrote = true
	t.Add(s.sql.deletePrunable, first, b.last, session.IDs(ids))
	return nil
}

// existing returns which of the jobs exist, locked or not, in ascending order.
func (t *tx) existing(ctx context.Context, ids []int64) (found []int64, err error) {
	if len(ids) > 0 {
		t.Ints(&found, t.s.sql.existing, session.IDs(ids))
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
	}, s.sql.prunableKeys, from, most)
	if err := t.Flush(ctx); err != nil || b.found == 0 {
		return err
	}
	t.wrote = true
	for _, queue := range slices.Sorted(maps.Keys(over)) {
		slices.SortFunc(over[queue], bytes.Compare)
		t.Add(s.sql.pruneKeys, queue, t.now, session.Texts(over[queue]))
		t.Each(func(r *session.Result) { b.deleted += int(r.Int(0)) }, s.sql.rowCount)
	}
	return t.Flush(ctx)
}
