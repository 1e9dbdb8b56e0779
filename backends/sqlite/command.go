package sqlite

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// target is a row that an operator's command names.
type target struct {
	id    int64
	state backends.State
	key   string
	group string
	slot  bool // it has one of its group
	start bool // its key is free once it has started
}

// each calls f with each row of the queue whose id is in ids.
func (t *tx) each(queue string, ids []int64, f func(target) error) error {
	for _, id := range ids {
		var found *target
		if err := t.query(t.sql.inState, func(r row) error {
			if r.text(0) == queue {
				found = &target{id, backends.State(r.text(1)), r.text(2), r.text(3), r.int(4) != 0, r.int(5) != 0}
			}
			return nil
		}, id); err != nil {
			return err
		}
		if found != nil {
			if err := f(*found); err != nil {
				return err
			}
		}
	}
	return nil
}

// Delete implements core.Commander.
func (t *tx) Delete(_ context.Context, queue string, ids []int64) (n int64, err error) {
	err = t.each(queue, ids, func(j target) error {
		if j.state == backends.StateClaimed {
			return nil
		}
		n++
		if j.slot {
			if err := t.noteGroup(core.Group{Queue: queue, Name: j.group}); err != nil {
				return err
			}
		}
		return t.remove(backends.StateDeleted, queue, j.key, j.id)
	})
	return n, err
}

// ChangeWaiting implements core.Commander.
func (t *tx) ChangeWaiting(_ context.Context, queue string, ids []int64, c *backends.Command) (n int64, ready bool, err error) {
	err = t.each(queue, ids, func(j target) error {
		waits := j.state == backends.StateReady || j.state == backends.StateBlocked
		if !waits && j.state != backends.StateScheduled {
			return nil
		}
		n++
		var priority, due, enqueued int64
		if err := t.query(t.sql.place, func(r row) error {
			priority, due, enqueued = r.int(0), r.int(2), r.int(6)
			return nil
		}, j.id, queue); err != nil {
			return err
		}
		switch {
		case c.Delay != nil:
			if due = t.now + core.MS(*c.Delay); c.Within > 0 {
				due = min(due, enqueued+core.MS(c.Within))
			}
		case !c.RunAt.IsZero():
			due = ceilMilli(c.RunAt)
		case waits:
			due = t.now
		}
		if c.Priority != nil {
			priority = int64(*c.Priority)
		}
		if waits && j.slot { // it waits for its group again
			if err := t.one(t.sql.block, 1, j.id); err != nil {
				return err
			}
			if err := t.noteGroup(core.Group{Queue: queue, Name: j.group}); err != nil {
				return err
			}
			j.slot = false
		}
		if due > t.now {
			return t.one(t.sql.schedule, priority, due, j.id)
		}
		ready = ready || j.group == "" || j.slot
		position, err := t.next()
		if err != nil {
			return err
		}
		return t.one(t.sql.moveBack, priority, position, t.now, j.id)
	})
	return n, ready, err
}

// LockClaimed implements core.Commander.
func (t *tx) LockClaimed(_ context.Context, queue string, ids []int64) (rows []*core.Row, err error) {
	err = t.each(queue, ids, func(j target) error {
		if j.state != backends.StateClaimed {
			return nil
		}
		c, err := t.find(j.id)
		if c != nil {
			rows = append(rows, &c.Row)
		}
		return err
	})
	return rows, err
}

// States implements core.Commander.
func (t *tx) States(_ context.Context, queue string, ids []int64) (all []core.JobState, err error) {
	err = t.each(queue, ids, func(j target) error {
		s := core.JobState{ID: j.id, State: j.state, Group: j.group}
		if j.state == backends.StateDead {
			if s.Cancelled, err = t.exists(t.sql.wasCancelled, j.id); err != nil {
				return err
			}
		}
		all = append(all, s)
		return nil
	})
	return all, err
}

// CancelWaiting implements core.Commander.
func (t *tx) CancelWaiting(_ context.Context, queue string, ids []int64, retainDead time.Duration) error {
	return t.each(queue, ids, func(j target) error {
		var attempts, fence int64
		keep := core.MS(retainDead)
		if err := t.query(t.sql.waiting, func(r row) error {
			attempts, fence = r.int(0), max(r.int(1)+1, t.micros)
			if !r.null(2) {
				keep = r.int(2)
			}
			return nil
		}, j.id); err != nil {
			return err
		}
		if err := t.one(t.sql.cancel, fence, positive(keep), t.now, after(t.now, core.FromMS(keep)), backends.CancelledMessage, j.id); err != nil {
			return err
		}
		if err := t.failed(j.id, attempts, backends.CauseCancelled, backends.CancelledMessage); err != nil {
			return err
		}
		return t.endKey(backends.StateDead, queue, j.key, j.id)
	})
}

// NoteCancelled implements core.Commander.
func (t *tx) NoteCancelled(claims []*core.Row) {
	for _, r := range claims {
		t.do(func() error {
			_, err := t.exec(t.sql.noteCancelled, int64(r.Owner), int64(r.Token.Sidecar), int64(r.Token.Number))
			return err
		})
	}
}

// Purge implements core.Commander.
func (t *tx) Purge(ctx context.Context, queue string, state backends.State, _ any, limit int64) (r core.Step, err error) {
	ids, err := t.following(queue, state, listStart, int(limit)) // nothing is left of the jobs before
	if err != nil {
		return r, err
	}
	r.Seen = int64(len(ids))
	r.N, err = t.Delete(ctx, queue, ids)
	return r, err
}

// Pause implements core.Commander.
func (t *tx) Pause(_ context.Context, queue string, paused bool) (ready bool, err error) {
	if paused {
		_, err = t.exec(t.sql.pause, queue)
		return false, err
	}
	if _, err := t.exec(t.sql.resume, queue); err != nil {
		return false, err
	}
	return t.exists(t.sql.anyReady, queue)
}

// Retry implements core.Commander.
func (t *tx) Retry(ctx context.Context, queue string, ids []int64, after any, limit int64) (r core.Step, err error) {
	if ids == nil {
		from, ok := after.(listPlace)
		if !ok {
			from = listStart
		}
		if ids, err = t.following(queue, backends.StateDead, from, int(limit)); err != nil || len(ids) == 0 {
			return r, err
		}
		if r.Last, _, err = t.Place(ctx, backends.Peek{Queue: queue, State: backends.StateDead}, ids[len(ids)-1]); err != nil { // read before it changes
			return r, err
		}
	}
	r.Seen = int64(len(ids))
	err = t.each(queue, ids, func(j target) error {
		if j.state != backends.StateDead {
			return nil
		}
		if j.key != "" && !j.start {
			if has, err := t.takeKeyBack(queue, j); err != nil || !has {
				return err
			}
		}
		r.N++
		position, err := t.next()
		if err != nil {
			return err
		}
		return t.one(t.sql.retry, position, t.now, j.id)
	})
	return r, err
}

// takeKeyBack gives a revived dead job its key again. It returns false if another job has the key.
func (t *tx) takeKeyBack(queue string, j target) (bool, error) {
	until, taken := t.now, false
	if err := t.query(t.sql.findKey, func(r row) error {
		switch {
		case r.int(0) == j.id:
			until = r.int(1)
		case r.null(2) || t.now < r.int(1):
			taken = true
		}
		return nil
	}, queue, j.key); err != nil || taken {
		return false, err
	}
	_, err := t.exec(t.sql.putKey, queue, j.key, j.id, until)
	return true, err
}
