package core_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// first returns at most the first n rows.
func first(rows []*jobRow, n int) []*jobRow { return rows[:min(n, len(rows))] }

// Promote implements core.Maintainer.
func (t *tx) Promote(_ context.Context, _ core.Due, only []int64, limit int, promoted func(queue string)) (seen int, err error) {
	for _, r := range first(t.scheduled(only), limit) {
		if err := t.refusal(r); err != nil {
			return 0, err
		}
		r.state, r.position, r.ready = backends.StateReady, t.next(), t.now
		promoted(r.queue)
		seen++
	}
	return seen, nil
}

// scheduled returns the scheduled jobs that are due, or those with the ids.
func (t *tx) scheduled(only []int64) []*jobRow {
	return t.find(func(r *jobRow) bool {
		return r.state == backends.StateScheduled && !r.runAt.After(t.now) && (only == nil || slices.Contains(only, r.id))
	}, orderOf(backends.StateScheduled))
}

// expired returns the finished jobs that have expired, or those with the ids.
func (t *tx) expired(only []int64) []*jobRow {
	return t.find(func(r *jobRow) bool {
		return !r.expires.IsZero() && !r.expires.After(t.now) && (only == nil || slices.Contains(only, r.id))
	}, func(a, b *jobRow) int { return a.expires.Compare(b.expires) })
}

// FindScheduled implements core.Maintainer.
func (t *tx) FindScheduled(_ context.Context, _ core.Due, limit int) (all []core.Found, err error) {
	for _, r := range first(t.scheduled(nil), limit) {
		all = append(all, core.Found{ID: r.id, Queue: r.queue})
	}
	return all, nil
}

// FindExpired implements core.Maintainer.
func (t *tx) FindExpired(_ context.Context, _ time.Time, limit int) (all []core.Found, err error) {
	for _, r := range first(t.expired(nil), limit) {
		all = append(all, core.Found{ID: r.id, Queue: r.queue})
	}
	return all, nil
}

// refusal is the error of a change of a job, if the test refuses it.
func (t *tx) refusal(r *jobRow) error {
	for _, x := range t.db.refuseChanges {
		if x.Queue == r.queue && (x.Priority == 0 || x.Priority == r.priority) && (x.Worker == "" || x.Worker == r.worker) {
			return backends.Refused(errors.New(x.Reason))
		}
	}
	return nil
}

// LockDue implements core.Maintainer.
func (t *tx) LockDue(_ context.Context, _ core.Due, limit int) (rows []*core.Row, seen int, err error) {
	due := t.find(func(r *jobRow) bool { return !r.due.IsZero() && !r.due.After(t.now) }, func(a, b *jobRow) int { return a.due.Compare(b.due) })
	for _, r := range first(due, limit) {
		cause := backends.CauseLeaseEnded
		if !r.deadline.IsZero() && !r.deadline.After(r.due) {
			cause = backends.CauseTimedOut
		}
		rows = append(rows, r.row(cause))
	}
	return rows, len(rows), nil
}

// LockLost implements core.Maintainer.
func (t *tx) LockLost(_ context.Context, d core.Due, limit int) (rows []*core.Row, seen int, err error) {
	lost := t.find(func(r *jobRow) bool {
		return r.state == backends.StateClaimed && slices.Contains(d.Lost, int64(r.owner))
	}, orderOf(backends.StateClaimed))
	for _, r := range first(lost, limit) {
		seen++
		rows = append(rows, r.row(backends.CauseSidecarLost))
	}
	return rows, seen, nil
}

// MarkDead implements core.Maintainer.
func (t *tx) MarkDead(_ context.Context, suspects []backends.Suspect) error {
	for _, x := range suspects {
		if s := t.sidecars[x.Sidecar]; s.heartbeats == x.Heartbeats && backends.HeartbeatExpired(s.expires.Sub(t.now), x.Timeout, s.left) {
			s.dead = true
			t.sidecars[x.Sidecar] = s
		}
	}
	return nil
}

// Forget implements core.Maintainer.
func (t *tx) Forget(context.Context, core.Due) error {
	for id, s := range t.sidecars {
		owns := func(r *jobRow) bool { return r.state == backends.StateClaimed && r.owner == id }
		if s.dead && len(t.find(owns, orderOf(backends.StateClaimed))) == 0 {
			delete(t.sidecars, id)
		}
	}
	for owner := range t.notes {
		if !t.alive(owner) {
			delete(t.notes, owner)
		}
	}
	return nil
}

// ForgetCancelled implements core.Maintainer.
func (t *tx) ForgetCancelled(owner backends.Identity, claims []backends.Token) {
	t.notes[owner] = slices.DeleteFunc(t.notes[owner], func(c backends.Token) bool { return slices.Contains(claims, c) })
}

// Prune implements core.Maintainer.
func (t *tx) Prune(_ context.Context, what core.Pruned, _ time.Time, only []int64, limit int) (deleted, found int, last time.Time, err error) {
	if what == core.PruneKeys {
		for name, k := range t.keys {
			if deleted < limit && k.state != "" && !k.expires.After(t.now) {
				delete(t.keys, name)
				deleted++
			}
		}
		return deleted, deleted, last, nil
	}
	for _, r := range first(t.expired(only), limit) {
		if err := t.refusal(r); err != nil {
			return 0, 0, last, err
		}
		delete(t.jobs, r.id)
		deleted++
	}
	return deleted, deleted, last, nil
}

// chosen returns the rows of a queue with the ids.
func (t *tx) chosen(queue string, ids []int64) (rows []*jobRow) {
	for _, id := range ids {
		if r := t.jobs[id]; r != nil && r.queue == queue {
			rows = append(rows, r)
		}
	}
	return rows
}

// Retry implements core.Commander.
func (t *tx) Retry(_ context.Context, queue string, ids []int64, after any, limit int64) (x core.Step, err error) {
	rows := t.chosen(queue, ids)
	if ids == nil {
		rows = first(t.listed(queue, backends.StateDead, after), int(limit))
	}
	for _, r := range rows {
		x.Seen, x.Last = x.Seen+1, *r
		if r.state != backends.StateDead {
			continue
		}
		if err := t.refusal(r); err != nil {
			return x, err
		}
		name := keyName{r.queue, r.key}
		if r.key != "" && t.keyTaken(name, r.id, t.now) {
			continue
		}
		if r.key != "" {
			k := t.keys[name]
			if k.job != r.id {
				k.expires = t.now
			}
			t.keys[name] = keyRow{job: r.id, expires: k.expires}
		}
		r.state, r.position, r.ready, r.attempts, r.losses, r.unrecorded = backends.StateReady, t.next(), t.now, 0, 0, 0
		r.finished, r.expires = time.Time{}, time.Time{}
		x.N++
	}
	return x, nil
}

// ChangeWaiting implements core.Commander.
func (t *tx) ChangeWaiting(_ context.Context, queue string, ids []int64, c *backends.Command) (n int64, ready bool, err error) {
	for _, r := range t.chosen(queue, ids) {
		if r.state != backends.StateReady && r.state != backends.StateScheduled {
			continue
		}
		if err := t.refusal(r); err != nil {
			return 0, false, err
		}
		n++
		due := r.runAt
		switch {
		case c.Delay != nil:
			due = t.now.Add(*c.Delay)
		case !c.RunAt.IsZero():
			due = c.RunAt
		case r.state == backends.StateReady:
			due = time.Time{}
		}
		if c.Priority != nil {
			r.priority = *c.Priority
		}
		if r.runAt = due; due.After(t.now) {
			r.state = backends.StateScheduled
			continue
		}
		r.state, r.position, r.ready, ready = backends.StateReady, t.next(), t.now, true
	}
	return n, ready, nil
}

// Delete implements core.Commander.
func (t *tx) Delete(_ context.Context, queue string, ids []int64) (n int64, err error) {
	for _, r := range t.chosen(queue, ids) {
		if r.state == backends.StateClaimed {
			continue
		}
		if err := t.refusal(r); err != nil {
			return 0, err
		}
		t.remove(r, backends.StateDeleted)
		n++
	}
	return n, nil
}

// LockClaimed implements core.Commander.
func (t *tx) LockClaimed(_ context.Context, queue string, ids []int64) (rows []*core.Row, err error) {
	for _, r := range t.chosen(queue, ids) {
		if r.state == backends.StateClaimed {
			rows = append(rows, r.row(""))
		}
	}
	return rows, nil
}

// States implements core.Commander.
func (t *tx) States(_ context.Context, queue string, ids []int64) (all []core.JobState, err error) {
	for _, r := range t.chosen(queue, ids) {
		n := len(r.failures)
		all = append(all, core.JobState{ID: r.id, State: r.state, Cancelled: r.state == backends.StateDead && n > 0 && r.failures[n-1].Cause == backends.CauseCancelled})
	}
	return all, nil
}

// CancelWaiting implements core.Commander.
func (t *tx) CancelWaiting(_ context.Context, queue string, ids []int64, retainDead time.Duration) error {
	for _, r := range t.chosen(queue, ids) {
		if err := t.refusal(r); err != nil {
			return err
		}
		r.state, r.fence, r.runAt, r.finished = backends.StateDead, r.fence+1, time.Time{}, t.now
		r.policy.RetainDead = cmp.Or(r.policy.RetainDead, retainDead)
		r.expires = after(t.now, r.policy.RetainDead)
		r.failures = append(r.failures, backends.Failure{Attempt: r.attempts, Cause: backends.CauseCancelled, Message: backends.CancelledMessage, At: t.now})
		t.endKey(r, backends.StateDead)
	}
	return nil
}

// NoteCancelled implements core.Commander.
func (t *tx) NoteCancelled(claims []*core.Row) {
	for _, r := range claims {
		t.notes[r.Owner] = append(t.notes[r.Owner], r.Token)
	}
}

// Cancelled implements core.Reader.
func (t *tx) Cancelled(_ context.Context, owner backends.Identity) ([]backends.Token, error) {
	return slices.Clone(t.notes[owner]), nil
}

// Purge implements core.Commander.
func (t *tx) Purge(_ context.Context, queue string, state backends.State, after any, limit int64) (s core.Step, err error) {
	s.Last = after
	for _, r := range first(t.listed(queue, state, after), int(limit)) {
		if err := t.refusal(r); err != nil {
			return s, err
		}
		s.Last = *r
		t.remove(r, backends.StateDeleted)
		s.N, s.Seen = s.N+1, s.Seen+1
	}
	return s, nil
}

// Pause implements core.Commander.
func (t *tx) Pause(_ context.Context, queue string, paused bool) (ready bool, err error) {
	q := t.queues[queue]
	q.paused = paused
	t.queues[queue] = q
	return !paused && len(t.listed(queue, backends.StateReady, nil)) > 0, nil
}

// listed returns the jobs of a queue in a state, from just after a row.
func (t *tx) listed(queue string, state backends.State, after any) []*jobRow {
	order := orderOf(state)
	from, ok := after.(jobRow)
	which := inState(queue, state)
	return t.find(func(r *jobRow) bool {
		return which(r) && (!ok || cmp.Or(order(r, &from), cmp.Compare(r.id, from.id)) > 0)
	}, order)
}

// Count implements core.Reader.
func (t *tx) Count(_ context.Context, queue string, state backends.State) (int64, error) {
	return int64(len(t.listed(queue, state, nil))), nil
}

// Stats implements core.Reader.
func (t *tx) Stats(_ context.Context, queues []string) (all []backends.QueueStats, err error) {
	counts := core.Tally{}
	for _, r := range t.jobs {
		c := core.Counted{Queue: r.queue, State: r.state, N: 1}
		switch r.state {
		case backends.StateReady:
			c.Oldest = max(t.now.Sub(r.ready), time.Millisecond)
		case backends.StateClaimed:
			c.Oldest = max(t.now.Sub(r.claimed), time.Millisecond)
		}
		counts.Add(c)
	}
	for name, q := range t.queues {
		if q.paused {
			counts.Of(name).Paused = true
		}
	}
	if queues == nil {
		all, _ = counts.All()
		return all, nil
	}
	for _, q := range queues {
		all = append(all, *counts.Of(q))
	}
	return all, nil
}

// Place implements core.Reader.
func (t *tx) Place(_ context.Context, p backends.Peek, id int64) (place any, found bool, err error) {
	r := t.jobs[id]
	if r == nil || r.queue != p.Queue {
		return nil, false, nil
	}
	return *r, true, nil
}

// Sizes implements core.Reader.
func (t *tx) Sizes(_ context.Context, p backends.Peek, ids []int64, after any, each func(id, bytes int64)) error {
	rows := t.chosen(p.Queue, ids)
	if ids == nil {
		rows = t.listed(p.Queue, p.State, after)
		if p.Newest {
			rows = t.listed(p.Queue, p.State, nil)
			slices.Reverse(rows)
			if from, ok := after.(jobRow); ok && !from.finished.IsZero() { // it still is finished
				rows = rows[1+slices.IndexFunc(rows, func(r *jobRow) bool { return r.id == from.id }):]
			}
		}
		rows = first(rows, p.Max)
	}
	for _, r := range rows {
		each(r.id, int64(len(r.payload)+len(r.result)))
	}
	return nil
}

// KeyHolder implements core.Reader.
func (t *tx) KeyHolder(_ context.Context, queue, key string) (id int64, found bool, err error) {
	k, found := t.keys[keyName{queue, key}]
	return k.job, found, nil
}

// Views implements core.Reader.
func (t *tx) Views(_ context.Context, queue string, ids []int64) (views []backends.View, err error) {
	for _, r := range t.chosen(queue, ids) {
		v := backends.View{
			ID: core.ID(r.id), Queue: r.queue, State: r.state, Payload: r.payload, Priority: r.priority, Attempt: r.attempts,
			MaxAttempts: cmp.Or(r.policy.MaxAttempts, r.maxAttempts), EnqueuedAt: r.enqueued.UTC(), Key: r.key, Headers: r.headers, Result: r.result,
			Failures: r.failures,
		}
		if !r.finished.IsZero() {
			v.FinishedAt = r.finished.UTC()
		}
		switch r.state {
		case backends.StateScheduled:
			v.RunAt = r.runAt.UTC()
		case backends.StateClaimed:
			v.ClaimedAt, v.Worker = r.claimed.UTC(), r.worker
		}
		views = append(views, v)
	}
	return views, nil
}

// Clock implements core.Historian.
func (t *tx) Clock(context.Context) (time.Time, error) { return t.now, nil }

// AddHour implements core.Historian.
func (t *tx) AddHour(row *backends.HourTotals) {
	for i := range t.hours {
		if t.hours[i].Hour == row.Hour && t.hours[i].Queue == row.Queue {
			t.hours[i].Add(&row.Totals)
			return
		}
	}
	t.hours = append(t.hours, *row)
}

// ForgetHours implements core.Historian.
func (t *tx) ForgetHours(before int64) {
	t.hours = slices.DeleteFunc(t.hours, func(h backends.HourTotals) bool { return h.Hour < before })
}

// Hours implements core.Reader.
func (t *tx) Hours(_ context.Context, queue string) (all []backends.HourTotals, err error) {
	for _, h := range t.hours {
		if queue == "" || h.Queue == queue {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b backends.HourTotals) int {
		return cmp.Or(cmp.Compare(a.Hour, b.Hour), cmp.Compare(a.Queue, b.Queue))
	})
	return all, nil
}

// ClaimedBy implements core.Reader.
func (t *tx) ClaimedBy(_ context.Context, owner backends.Identity, after int64, limit int) (all []backends.ClaimedJob, err error) {
	rows := t.find(func(r *jobRow) bool { return r.state == backends.StateClaimed && r.owner == owner && r.id > after },
		func(a, b *jobRow) int { return cmp.Compare(a.id, b.id) })
	for _, r := range first(rows, limit) {
		all = append(all, backends.ClaimedJob{Lease: backends.Lease{Job: core.ID(r.id), Token: r.token}, Queue: r.queue, Timed: r.lease > 0})
	}
	return all, nil
}
