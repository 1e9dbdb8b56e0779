package core_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// tx is a transaction on a copy of the tables. Each method takes effect at once.
type tx struct {
	*tables
	db      *database
	now     time.Time
	o       core.TxOptions
	cursors *cursor.Set
	err     error
}

// Flush implements core.Tx.
func (t *tx) Flush(context.Context) error { return t.err }

// Do implements backends.SQL. The engine has no SQL.
func (t *tx) Do(context.Context, ...*backends.Statement) error { return errors.ErrUnsupported }

// Insert implements core.Writer.
func (t *tx) Insert(jobs []*core.NewJob) (pending bool) {
	for _, j := range jobs {
		if why, ok := t.db.refuse[j.Queue]; ok {
			t.err = backends.Refused(errors.New(why))
			return false
		}
		name := keyName{j.Queue, j.Key}
		if k := t.keys[name]; j.Key != "" && t.keyTaken(name, 0, t.now) {
			state := k.state
			if r := t.jobs[k.job]; state == "" && r != nil {
				state = r.state
			}
			j.Duplicate(k.job, cmp.Or(state, backends.StateDeleted))
			continue
		}
		r := &jobRow{
			id: t.next(), queue: j.Queue, key: j.Key, state: backends.StateReady, payload: slices.Clone(j.Payload), headers: maps.Clone(j.Headers), priority: j.Priority,
			maxAttempts: j.MaxAttempts, timeout: j.Timeout, enqueued: t.now, ready: t.now, runAt: j.RunAt,
		}
		if j.Delay > 0 {
			r.runAt = t.now.Add(j.Delay)
		}
		if r.runAt.After(t.now) {
			r.state = backends.StateScheduled
		}
		r.position = r.id
		t.jobs[r.id] = r
		if j.Key != "" {
			t.keys[name] = keyRow{job: r.id, expires: t.now.Add(j.KeyTTL)}
		}
		j.Stored(r.id, r.state == backends.StateReady)
	}
	return false
}

// Ack implements core.Writer.
func (t *tx) Ack(leases []core.Lease, ended func(i int)) (sure bool) {
	for i, l := range leases {
		r := t.jobs[l.ID]
		if r != nil && r.state == backends.StateClaimed && int64(r.token.Sidecar) == l.Sidecar && int64(r.token.Number) == l.Number && r.policy.RetainDone == 0 && r.key == "" {
			delete(t.jobs, l.ID)
			ended(i)
		}
	}
	return false
}

// Deliver implements core.Writer. The core does not call it: see Traits.
func (t *tx) Deliver([]core.Lease, []backends.Delivery, func(i int)) {}

// row returns a claimed row in the form that the core uses.
func (j *jobRow) row(cause backends.Cause) *core.Row {
	x := &core.Row{
		ID: j.id, Queue: j.queue, Key: j.key, Priority: j.priority, Position: j.position, Fence: j.fence, Token: j.token, Owner: j.owner, Lease: j.lease,
		AttemptState: backends.AttemptState{
			Attempts: j.attempts, Limit: j.policy.MaxAttempts, Losses: j.losses, Backoff: j.policy.Backoff, BackoffMax: j.policy.BackoffMax,
			Prefetched: j.prefetched, PrefetchLosses: j.unrecorded,
		},
		Kept: j.policy.RetainDone > 0, HasWorker: j.worker != "", Cause: cause,
	}
	if j.prefetched {
		x.Attempts++
	}
	return x
}

// Lock implements core.Writer.
func (t *tx) Lock(ids []int64, found func(*core.Row)) {
	for _, id := range ids {
		if r := t.jobs[id]; r != nil && r.state == backends.StateClaimed {
			found(r.row(""))
		}
	}
}

// Change implements core.Writer.
func (t *tx) Change(rows []*core.Row, changed func(*core.Row), gaveBack func(queue string, returns int64)) {
	returned := map[string]bool{}
	for _, x := range rows {
		r, c := t.jobs[x.ID], &x.Change
		t.err = cmp.Or(t.err, t.refusal(r))
		switch c.Kind {
		case core.Deleted:
			t.remove(r, c.State)
		case core.Renewed:
			r.attempts, r.unrecorded, r.prefetched, r.owner, r.lease = c.Attempts, c.PrefetchLosses, false, c.Owner, c.Lease
			if r.due.IsZero() && !r.deadline.IsZero() { // its time limit begins
				r.deadline = t.now.Add(max(r.deadline.Sub(r.claimed)-c.Ago, 0))
				r.due = r.deadline
			}
			if c.NewDue {
				r.due = earlier(after(t.now, c.Lease), r.deadline)
			}
			if c.SetWorker {
				r.worker = c.Worker
			}
		case core.Ended:
			t.end(r, c)
			returned[r.queue] = returned[r.queue] || c.State == backends.StateReady && c.SamePosition
		}
		changed(x)
	}
	for queue, is := range returned {
		if is {
			q := t.queues[queue]
			q.returns++
			t.queues[queue] = q
			gaveBack(queue, q.returns)
		}
	}
}

// end writes the outcome for a claim that ended and whose job stays.
func (t *tx) end(r *jobRow, c *core.Change) {
	r.unclaim()
	r.state, r.attempts, r.losses, r.unrecorded, r.result = c.State, c.Attempts, c.Losses, c.PrefetchLosses, c.Result
	if c.Cause != "" {
		r.failures = append(r.failures, backends.Failure{Attempt: c.Attempts, Cause: c.Cause, Message: c.Message, At: t.now})
	}
	switch c.State {
	case backends.StateScheduled:
		r.runAt = t.now.Add(c.Delay)
	case backends.StateReady:
		if !c.SamePosition {
			r.position, r.ready = t.next(), t.now
		}
	case backends.StateDone:
		r.finished, r.expires = t.now, after(t.now, r.policy.RetainDone)
		t.endKey(r, c.State)
	case backends.StateDead:
		r.finished, r.expires = t.now, after(t.now, r.policy.RetainDead)
		t.endKey(r, c.State)
	}
}

// within returns the ready jobs of a piece in their order.
func (t *tables) within(queue string, p core.Piece) []*jobRow {
	spot := func(r *jobRow) cursor.Spot { return cursor.Spot{Urgency: r.urgency(), Position: r.position} }
	compare := func(a, b cursor.Spot) int {
		return cmp.Or(cmp.Compare(a.Urgency, b.Urgency), cmp.Compare(a.Position, b.Position))
	}
	ready := inState(queue, backends.StateReady)
	return t.find(func(r *jobRow) bool {
		return ready(r) && compare(spot(r), p.From) > 0 && compare(spot(r), p.To) <= 0
	}, orderOf(backends.StateReady))
}

// Claim implements core.Claimer.
func (t *tx) Claim(r *core.Run) {
	var got []core.Claimed
	left, seen := r.MaxBytes, 0 // seen: rows left over
	for _, p := range r.Pieces {
		policy := r.Queues[p.Queue]
		rows := t.within(policy.Queue, p)
		if policy.LIFO {
			slices.SortFunc(rows, func(a, b *jobRow) int {
				return cmp.Or(cmp.Compare(a.urgency(), b.urgency()), cmp.Compare(b.position, a.position))
			})
		}
		if t.queues[policy.Queue].paused {
			continue
		}
		for _, row := range rows {
			if len(got)+seen == len(r.Slots) {
				break
			}
			if r.Careful != nil && slices.Contains(r.Careful.Except, row.id) {
				continue
			}
			size := int64(len(row.payload))
			if size > r.MaxPayload || size > left && (len(got) > 0 || !r.AtLeastOne) {
				seen++
				if r.LeftOver(p.Queue, row.id, size); size <= r.MaxPayload {
					left = -1 // later jobs must not overtake it
				}
				continue
			}
			left -= size
			got = append(got, t.claim(r, row, policy, p.Queue, len(got)))
			t.err = cmp.Or(t.err, t.refusal(row))
		}
	}
	t.err = cmp.Or(t.err, r.Give(got, int64(len(got))))
}

// claim assigns a row to a slot.
func (t *tx) claim(r *core.Run, row *jobRow, policy backends.Policy, queue, slot int) core.Claimed {
	s := r.Slots[slot]
	policy.MaxAttempts = cmp.Or(row.maxAttempts, policy.MaxAttempts)
	alone := s.Alone(row.attempts+1, policy.MaxAttempts, row.losses)
	row.prefetched = s.Uncounted(row.unrecorded, policy.MaxAttempts, alone)
	if !row.prefetched {
		row.attempts++
	}
	row.state, row.policy, row.token, row.owner, row.lease = backends.StateClaimed, policy, s.Token, r.Sidecar, s.Lease
	row.fence, row.claimed = row.fence+1, t.now
	timeout := cmp.Or(row.timeout, policy.Timeout)
	row.deadline = after(t.now, timeout)
	row.worker, row.due = s.Worker, earlier(after(t.now, s.Lease), row.deadline)
	if s.Prefetch || alone { // no worker has it, so its time limit has not begun
		row.worker, row.due = "", time.Time{}
	}
	c := core.Claimed{Slot: int64(slot + 1), Queue: queue, Position: row.position, Losses: row.losses}
	c.Job = backends.Job{
		ID: core.ID(row.id), Queue: row.queue, Payload: slices.Clone(row.payload), Attempt: row.row("").Attempts, MaxAttempts: policy.MaxAttempts, Fence: row.fence,
		Priority: row.priority, EnqueuedAt: row.enqueued.UTC(), Timeout: timeout, Headers: maps.Clone(row.headers), Key: row.key,
	}
	if n := len(row.failures); n > 0 {
		c.LastError = row.failures[n-1].Message
	}
	return c
}

// Bury implements core.Claimer.
func (t *tx) Bury(jobs []core.TooLarge) {
	for _, j := range jobs {
		r := t.jobs[j.ID]
		r.policy = j.Policy
		r.policy.MaxAttempts = cmp.Or(r.maxAttempts, j.Policy.MaxAttempts)
		r.attempts++
		t.end(r, &core.Change{State: backends.StateDead, Attempts: r.attempts, Losses: r.losses, Cause: backends.CauseTooLarge, Message: j.Message})
	}
}

// Prove implements core.Claimer. Transactions run one after the other, so nothing can appear below what this
// one sees.
func (t *tx) Prove(_ context.Context, queues []string) {
	for _, queue := range queues {
		p, ok := t.cursors.ToProve(queue)
		if !ok {
			continue
		}
		first := make([]int64, len(p.Urgency))
		for i, u := range p.Urgency {
			piece := core.Piece{Segment: cursor.Segment{From: cursor.Spot{Urgency: u, Position: p.Low[i]}, To: cursor.Spot{Urgency: u, Position: p.High[i]}}}
			if rows := t.within(queue, piece); len(rows) > 0 {
				first[i] = rows[0].position
			}
		}
		t.cursors.Advance(p, math.MaxInt64, first)
	}
}

// ClaimState implements core.Claimer.
func (t *tx) ClaimState() core.ClaimState {
	s := core.ClaimState{Ended: t.last + 1, Begun: t.last + 1}
	for _, q := range t.o.Queues {
		s.Returns = append(s.Returns, t.queues[q].returns)
	}
	return s
}
