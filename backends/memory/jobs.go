package memory

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// counted returns the attempt state of j with the delivery of its current claim counted.
func (j *job) counted() backends.AttemptState {
	s := j.AttemptState
	if s.Prefetched {
		s.Attempts++
	}
	return s
}

// deliver records that a worker received j that long ago.
func (b *Backend) deliver(j *job, worker string, ago time.Duration) {
	j.AttemptState = j.counted()
	j.Prefetched, j.PrefetchLosses, j.worker = false, 0, cmp.Or(j.worker, worker)
	if j.undelivered && j.timeout > 0 {
		j.deadline = b.now.Add(max(j.timeout-ago, 0))
	}
	j.undelivered = false
}

// claimedJob returns the job that the lease is valid for, or nil.
func (b *Backend) claimedJob(l backends.Lease) *job {
	if j := b.jobs[l.Job]; j != nil && j.state == backends.StateClaimed && j.token == l.Token {
		return j
	}
	return nil
}

// forEachLease calls f with the job of each valid lease and returns the other leases. If owner is
// not zero, leases whose claim belongs to another sidecar count as invalid.
func (b *Backend) forEachLease(leases []backends.Lease, owner backends.Identity, f func(*job)) (lost []backends.Lease) {
	for _, l := range leases {
		if j := b.claimedJob(l); j != nil && (owner == 0 || owner == j.owner) {
			f(j)
		} else {
			lost = append(lost, l)
		}
	}
	return lost
}

// setState moves j to a state. If j is finished in that state, it is pruned at end (zero: never).
func (b *Backend) setState(j *job, s backends.State, end time.Time) {
	b.touch(j)
	if s == backends.StateReady && j.Group != "" && !j.admitted {
		s = backends.StateBlocked
	}
	j.state, j.finished, j.expires = s, time.Time{}, time.Time{}
	switch s {
	case backends.StateReady:
		if !slices.Contains(b.madeReady, j.Queue) {
			b.madeReady = append(b.madeReady, j.Queue)
		}
	case backends.StateDone, backends.StateDead, backends.StateDeleted:
		j.finished, j.expires, j.admitted = b.now, end, false
		b.memberEnded(j, s)
	}
}

// fromNow returns the time d from now, or the zero time if d is not positive.
func (b *Backend) fromNow(d time.Duration) time.Time {
	if d <= 0 {
		return time.Time{}
	}
	return b.now.Add(d)
}

func (b *Backend) store(jobs []backends.NewJob) (stored []backends.Stored) {
	for _, n := range jobs {
		k := key{n.Queue, n.Key}
		first := b.keys[k]
		if n.Key != "" && b.remembered(first) && n.OnConflict != backends.ConflictKeep {
			if s := b.replace(first, n); s.ID != "" {
				stored = append(stored, s)
				continue
			}
		} else if b.remembered(first) {
			stored = append(stored, backends.Stored{ID: first.id, Duplicate: true, State: first.state})
			continue
		}
		b.seq++
		n.Payload, n.Headers = bytes.Clone(n.Payload), maps.Clone(n.Headers)
		j := &job{NewJob: n, id: strconv.FormatInt(b.seq, 10), seq: b.seq, pos: b.seq, enqueued: b.now, readyAt: b.now, runAt: n.RunAt}
		b.jobs[j.id] = j
		if n.Key != "" {
			b.keys[k] = j
		}
		if n.Batch != "" {
			b.batches[n.Batch].members[j.id] = false
		}
		if n.Delay > 0 {
			j.runAt = b.now.Add(n.Delay)
		}
		state, from := backends.StateReady, b.now
		if j.runAt.After(b.now) {
			state, from = backends.StateScheduled, j.runAt
		}
		if j.startBefore = n.Expiry.StartBefore; n.Expiry.StartWithin > 0 {
			j.startBefore = from.Add(n.Expiry.StartWithin)
		}
		j.retainDead = n.Expiry.RetainDead
		b.setState(j, state, time.Time{})
		stored = append(stored, backends.Stored{ID: j.id})
	}
	return stored
}

// remembered reports whether the key of j still makes a second enqueue a duplicate: j is
// unfinished, or its key TTL has not passed.
func (b *Backend) remembered(j *job) bool {
	if j != nil && j.KeyUntilStart {
		return !j.started && j.finished.IsZero()
	}
	return j != nil && (j.finished.IsZero() || b.now.Before(j.enqueued.Add(j.KeyTTL)))
}

func (b *Backend) ack(j *job, result []byte) {
	b.deliver(j, "", 0)
	b.setState(j, backends.StateDone, b.fromNow(j.retainDone))
	if j.result = bytes.Clone(result); j.retainDone == 0 {
		delete(b.jobs, j.id)
	}
	b.settlePending(j)
}

// apply changes j as the disposition requires.
func (b *Backend) apply(j *job, f backends.Disposition) {
	b.setState(j, f.State, b.fromNow(j.retainDead))
	j.Attempts, j.Losses, j.Prefetched, j.PrefetchLosses = f.Attempts, f.Losses, false, f.PrefetchLosses
	if f.Cause != "" {
		j.failures = append(j.failures, backends.Failure{Attempt: j.Attempts, Cause: f.Cause, Message: f.Message, At: b.now})
	}
	if f.State == backends.StateScheduled && b.limits[j.Queue].FailedLeaveGroup() {
		b.leaveGroup(j)
	}
	if f.State == backends.StateScheduled {
		j.runAt = b.now.Add(f.Delay)
	} else if !f.SamePosition {
		b.seq++
		j.pos, j.readyAt = b.seq, b.now
	}
	b.settlePending(j)
}

func (b *Backend) extend(j *job, e backends.Extend) {
	b.deliver(j, "", 0)
	switch {
	case e.Bind != 0:
		j.owner, j.worker, j.lease = e.Bind, e.Worker, 0
	case e.Lease > 0:
		j.lease = e.Lease
	}
	j.leaseEnd = b.fromNow(j.lease)
}

func (b *Backend) claim(h backends.Identity, c backends.Claim) (r backends.ClaimResult) {
	var size int64
	full, expired := false, 0
	for _, p := range c.Queues {
		most := len(c.Slots)
		var gate *backends.Gate
		wanted := len(c.Slots) - len(r.Jobs)
		before := len(r.Jobs)
		switch limited := b.limits[p.Queue].Some(); {
		case wanted == 0:
		case limited && !p.Gated:
			r.Gates, r.More = append(r.Gates, backends.GateResult{Queue: p.Queue, Missed: true}), true
			continue
		case p.Gated:
			gate = b.gate(p.Queue)
			most = len(r.Jobs) + gate.Starts(wanted)
			r.Gates = append(r.Gates, backends.GateResult{})
		}
		for !b.paused[p.Queue] && len(r.Jobs) < most {
			j := b.firstReady(p)
			if j == nil {
				break
			}
			j.timeout, j.Limit = cmp.Or(j.Timeout, p.Timeout), cmp.Or(j.MaxAttempts, p.MaxAttempts)
			j.Backoff, j.BackoffMax, j.retainDone, j.retainDead = p.Backoff, p.BackoffMax, max(p.RetainDone, j.Retain), p.RetainDead
			if b.isExpired(j) {
				r.Failed.Add(j.Queue, backends.CauseExpired, !j.Expiry.Remove)
				b.expire(j)
				if expired++; expired == mostExpired {
					r.More, full = true, true
					break
				}
				continue
			}
			n := int64(len(j.Payload))
			if c.MaxPayload > 0 && n > c.MaxPayload {
				b.apply(j, backends.Disposition{
					State: backends.StateDead, Attempts: j.Attempts + 1,
					Cause: backends.CauseTooLarge, Message: backends.TooLarge(n, c.MaxPayload),
				})
				r.Failed.Add(j.Queue, backends.CauseTooLarge, true)
				continue
			}
			if size += n; (len(r.Jobs) > 0 || c.Strict) && c.MaxBytes > 0 && size > c.MaxBytes {
				r.More, full = true, true
				break
			}
			r.Jobs = append(r.Jobs, b.claimJob(j, h, c.Slots[len(r.Jobs)]))
		}
		if gate != nil {
			got := len(r.Jobs) - before
			r.Gates[len(r.Gates)-1] = gate.Result(wanted, max(most-before, 0), got)
			b.nextAt[p.Queue] = max(gate.Next(), gate.Now) + gate.Advance(got)
		}
		if full {
			return r
		}
	}
	return r
}

// mostExpired is how many expired jobs a claim meets until it ends.
const mostExpired = 100

// isExpired reports whether no attempt of a waiting job must start any more.
func (b *Backend) isExpired(j *job) bool {
	return !j.startBefore.IsZero() && !j.startBefore.After(b.now)
}

// expire ends a waiting job.
func (b *Backend) expire(j *job) {
	if j.Expiry.Remove {
		b.setState(j, backends.StateDeleted, time.Time{})
		delete(b.jobs, j.id)
		return
	}
	b.apply(j, backends.Disposition{
		State: backends.StateDead, Attempts: j.Attempts, Losses: j.Losses, PrefetchLosses: j.PrefetchLosses,
		Cause: backends.CauseExpired, Message: backends.ExpiredMessage,
	})
	j.fence = max(j.fence+1, b.now.UnixMicro())
}

// gate returns the state of a queue's limits.
func (b *Backend) gate(queue string) *backends.Gate {
	g := &backends.Gate{Limits: b.limits[queue], Queue: queue, Now: time.Duration(b.now.UnixNano()), NextAt: b.nextAt[queue]}
	for _, j := range b.jobs {
		if j.state == backends.StateClaimed && j.Queue == queue {
			g.Claimed++
		}
	}
	return g
}

// firstReady returns the first ready job in the order of p, or nil.
func (b *Backend) firstReady(p backends.Policy) (next *job) {
	for _, j := range b.jobs {
		if j.state == backends.StateReady && j.Queue == p.Queue && (next == nil || inOrder(j, next, p.LIFO) < 0) {
			next = j
		}
	}
	return next
}

func inOrder(x, y *job, lifo bool) int {
	if lifo && x.Priority == y.Priority {
		x, y = y, x
	}
	return cmp.Or(cmp.Compare(y.Priority, x.Priority), cmp.Compare(x.pos, y.pos))
}

func (b *Backend) claimJob(j *job, h backends.Identity, s backends.Slot) backends.Job {
	b.setState(j, backends.StateClaimed, time.Time{})
	if j.started = true; b.limits[j.Queue].GroupReady > 0 {
		b.touch(j)
	}
	j.token, j.owner, j.worker, j.claimed = s.Token, h, s.Worker, b.now
	j.lease, j.leaseEnd, j.deadline = s.Lease, b.fromNow(s.Lease), b.fromNow(j.timeout)
	j.fence = max(j.fence+1, b.now.UnixMicro())
	alone := s.Alone(j.Attempts+1, j.Limit, j.Losses)
	if j.undelivered = s.Prefetch || alone; j.undelivered {
		j.worker, j.deadline = "", time.Time{} // no worker has it yet
	}
	if j.Prefetched = s.Uncounted(j.PrefetchLosses, j.Limit, alone); !j.Prefetched {
		j.Attempts++
	}
	g := backends.Job{
		ID: j.id, Queue: j.Queue, Token: j.token, Payload: bytes.Clone(j.Payload), Attempt: j.counted().Attempts,
		MaxAttempts: j.Limit, Fence: j.fence, Priority: j.Priority, EnqueuedAt: j.enqueued,
		Timeout: j.timeout, Headers: maps.Clone(j.Headers), Key: j.Key, Alone: alone, HasProgress: j.progress != nil,
	}
	if !j.startBefore.IsZero() {
		g.StartWithin = j.startBefore.Sub(b.now)
	}
	if n := len(j.failures); n > 0 {
		g.LastError = j.failures[n-1].Message
	}
	return g
}
