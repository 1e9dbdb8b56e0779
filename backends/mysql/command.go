package mysql

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/claim"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
)

// Pause implements core.Commander.
func (t *tx) Pause(ctx context.Context, queue string, paused bool) (ready bool, err error) {
	t.wrote = true
	if paused {
		t.Add(t.s.sql.pause, queue)
		return false, nil
	}
	t.Add(t.s.sql.resume, queue)
	t.Bool(&ready, t.s.sql.anyInSegment, "r"+queue)
	err = t.Flush(ctx)
	return ready, err
}

// chosenRows locks rows by id and returns those that are in the queue, in the order of ids.
func (t *tx) chosenRows(ctx context.Context, queue string, ids []int64) ([]*job, error) {
	t.askNow()
	rows, err := t.lockRows(ctx, ids, t.s.sql.lock)
	return slices.DeleteFunc(rows, func(j *job) bool { return j.Queue != queue }), err
}

// deleteRows queues the deletion of the locked rows that `which` accepts, and returns their number.
func (t *tx) deleteRows(all []*job, which func(j *job) bool) int64 {
	var rows []*core.Row
	for _, j := range all {
		if which(j) {
			j.Change = core.Change{Kind: core.Deleted, State: backends.StateDeleted}
			rows = append(rows, &j.Row)
		}
	}
	slices.SortFunc(rows, func(a, b *core.Row) int { return cmp.Compare(a.ID, b.ID) })
	t.Change(rows, func(*core.Row) {}, nil)
	t.noteSlots(all, which)
	return int64(len(rows))
}

// Delete implements core.Commander.
func (t *tx) Delete(ctx context.Context, queue string, ids []int64) (int64, error) {
	rows, err := t.chosenRows(ctx, queue, ids)
	if err != nil {
		return 0, err
	}
	return t.deleteRows(rows, func(j *job) bool { return j.state != backends.StateClaimed }), nil
}

// LockClaimed implements core.Commander.
func (t *tx) LockClaimed(ctx context.Context, queue string, ids []int64) (rows []*core.Row, err error) {
	found, err := t.chosenRows(ctx, queue, ids)
	for _, j := range found {
		if j.state == backends.StateClaimed {
			rows = append(rows, &j.Row)
		}
	}
	return rows, err
}

// States implements core.Commander.
func (t *tx) States(ctx context.Context, queue string, ids []int64) (all []core.JobState, err error) {
	rows, err := t.chosenRows(ctx, queue, ids)
	if err != nil {
		return nil, err
	}
	var dead []int64
	for _, j := range rows {
		if j.state == backends.StateDead {
			dead = append(dead, j.ID)
		}
	}
	cancelled := map[int64]int64{} // the fence of the last cancelled delivery
	if len(dead) > 0 {
		t.Each(func(r *session.Result) { cancelled[r.Int(0)] = max(cancelled[r.Int(0)], r.Int(1)) }, t.s.sql.cancelledJobs, session.IDs(dead))
		if err := t.Flush(ctx); err != nil {
			return nil, err
		}
	}
	for _, j := range rows {
		fence, ok := cancelled[j.ID]
		state := j.state
		if state == backends.StateReady && j.group != "" {
			state = backends.StateBlocked
		}
		all = append(all, core.JobState{ID: j.ID, State: state, Group: cmp.Or(j.group, j.Group), Cancelled: ok && fence == j.Fence})
	}
	return all, nil
}

// CancelWaiting implements core.Commander.
func (t *tx) CancelWaiting(ctx context.Context, queue string, ids []int64, retainDead time.Duration) error {
	rows, err := t.chosenRows(ctx, queue, ids)
	if err != nil || len(rows) == 0 {
		return err
	}
	slices.SortFunc(rows, compareIDs)
	t.wrote = true
	all := make([]*core.Row, len(rows))
	for i, j := range rows {
		j.Fence, j.keepDead = claim.NextFence(j.Fence, t.now), cmp.Or(j.keepDead, core.MS(retainDead))
		d := j.AfterCancel()
		j.Change = core.Change{
			Kind: core.Ended, State: d.State, Attempts: d.Attempts, Losses: d.Losses, PrefetchLosses: d.PrefetchLosses, Cause: d.Cause, Message: d.Message,
		}
		all[i] = &j.Row
	}
	for part := range slices.Chunk(rows, rowsAtOnce) {
		list := idsOf(part)
		t.Add(t.s.sql.cancelWaiting, byRow("id, "+list, part, func(j *job) any { return j.Fence }), session.Positive(core.MS(retainDead)), session.Part{SQL: list})
	}
	t.Change(all, func(*core.Row) {}, nil)
	return t.Flush(ctx)
}

// NoteCancelled implements core.Commander.
func (t *tx) NoteCancelled(claims []*core.Row) {
	t.wrote = true
	for _, r := range claims {
		t.Add(t.s.sql.noteCancelled, int64(r.Owner), int64(r.Token.Sidecar), int64(r.Token.Number))
	}
}

// Purge implements core.Commander.
func (t *tx) Purge(ctx context.Context, queue string, state backends.State, after any, limit int64) (r core.Step, err error) {
	var ids []int64
	if state == backends.StateBlocked {
		ids, err = t.followingBlocked(ctx, &r, queue, after, limit)
	} else {
		ids, err = t.following(ctx, &r, table.StateSegment(state, queue), after, limit)
	}
	if err != nil || len(ids) == 0 {
		return r, err
	}
	t.askNow()
	rows, err := t.lockRows(ctx, ids, t.s.sql.lockFree)
	if err != nil {
		return r, err
	}
	r.N = t.deleteRows(rows, func(j *job) bool { return j.is(state) })
	return r, nil
}

// followingBlocked is following for the blocked jobs of a queue.
func (t *tx) followingBlocked(ctx context.Context, r *core.Step, queue string, after any, limit int64) (ids []int64, err error) {
	last, ok := after.(listPlace)
	if !ok {
		last = listStart
	}
	t.blocked(queue, last, limit, func(r *session.Result) {
		ids = append(ids, r.Int(0))
		last = listPlace{group: r.Text(2), urgency: int32(r.Int(3)), sortKey: r.Optional(4), id: r.Int(0)}
	})
	err = t.Flush(ctx)
	r.Seen, r.Last = int64(len(ids)), last
	return ids, err
}

// following returns the ids of at most limit jobs of a `segment` after a position, in their order. It sets Seen and
// Last of r.
func (t *tx) following(ctx context.Context, r *core.Step, segment string, after any, limit int64) (ids []int64, err error) {
	last, ok := after.(listPlace)
	if !ok {
		last = listStart
	}
	t.Each(func(r *session.Result) {
		ids, last = append(ids, r.Int(0)), listPlace{urgency: int32(r.Int(1)), sortKey: r.Optional(2), id: r.Int(0)}
	}, t.s.sql.following, segment, last.following(), limit)
	err = t.Flush(ctx)
	r.Seen, r.Last = int64(len(ids)), last
	return ids, err
}

// Retry implements core.Commander.
func (t *tx) Retry(ctx context.Context, queue string, ids []int64, after any, limit int64) (r core.Step, err error) {
	if ids == nil {
		if ids, err = t.following(ctx, &r, table.StateSegment(backends.StateDead, queue), after, limit); err != nil {
			return r, err
		}
	}
	rows, err := t.chosenRows(ctx, queue, ids)
	if err != nil {
		return r, err
	}
	rows = slices.DeleteFunc(rows, func(j *job) bool { return j.state != backends.StateDead })
	if len(rows) == 0 {
		return r, nil
	}
	if rows, err = t.takeKeysBack(ctx, rows); err != nil {
		return r, err
	}
	r.N = int64(len(rows))
	for first := 0; first < len(rows); first += core.BatchRows {
		t.makeReady(rows[first:min(first+core.BatchRows, len(rows))], first, t.s.sql.retry)
		t.makeRoom(1 << 20)
	}
	return r, nil
}

// ChangeWaiting implements core.Commander.
func (t *tx) ChangeWaiting(ctx context.Context, queue string, ids []int64, c *backends.Command) (n int64, ready bool, err error) {
	rows, err := t.chosenRows(ctx, queue, ids)
	if err != nil {
		return 0, false, err
	}
	var now []*job // these are ready, or blocked
	var later []int64
	var due session.Instant // of all; 0: each keeps its own
	switch {
	case c.Delay != nil:
		due = t.now + session.Instant(1000*core.MS(*c.Delay))
		if c.Within > 0 && len(rows) == 1 { // an enqueue names one job
			due = min(due, rows[0].enqueued+session.Instant(1000*core.MS(c.Within)))
		}
	case !c.RunAt.IsZero():
		due = session.Instant(c.RunAt.UnixMicro())
	}
	admitted := func(j *job) bool { return j.state == backends.StateReady && hasSlot(j) }
	if slots := t.noteSlots(rows, admitted); len(slots) > 0 {
		t.Add(t.s.sql.waitAgain, nil, session.IDs(slots))
	}
	for _, j := range rows {
		if j.state != backends.StateReady && j.state != backends.StateScheduled {
			continue
		}
		if at := cmp.Or(due, j.runAt); at > t.now {
			later = append(later, j.ID)
		} else {
			now = append(now, j)
			ready = ready || j.group == "" && !admitted(j)
		}
	}
	var priority any
	if c.Priority != nil {
		priority = int64(*c.Priority)
	}
	t.makeReady(now, 0, t.s.sql.changeReady, priority)
	if len(later) > 0 {
		t.wrote = true
		slices.Sort(later)
		if due == 0 {
			t.Add(t.s.sql.changeScheduled, priority, session.IDs(later))
		} else {
			t.Add(t.s.sql.changeScheduledAt, due, priority, session.IDs(later))
		}
		t.register([]string{queue}) // a plain INSERT doesn't, and maintenance deletes the row of an idle queue
	}
	return int64(len(now) + len(later)), ready, nil
}
