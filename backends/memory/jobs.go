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

// tried is how the job stands once the delivery of its claim is counted.
func (j *job) tried() backends.AttemptState {
	s := j.AttemptState
	if s.Prefetched {
		s.Attempts++
	}
	return s
}

// deliver records the delivery of j's claim.
func (j *job) deliver(worker string) {
	j.AttemptState = j.tried()
	j.Prefetched, j.PrefetchLosses, j.worker = false, 0, cmp.Or(j.worker, worker)
}

// valid is the job that the lease is valid for; nil: none.
func (b *Backend) valid(l backends.Lease) *job {
	if j := b.jobs[l.Job]; j != nil && j.state == backends.StateClaimed && j.token == l.Token {
		return j
	}
	return nil
}

// each calls f with the job of each valid lease and returns the other leases. With
// an owner, a claim that belongs to another host is none.
func (b *Backend) each(leases []backends.Lease, owner backends.Identity, f func(*job)) (lost []backends.Lease) {
	for _, l := range leases {
		if j := b.valid(l); j != nil && (owner == 0 || owner == j.owner) {
			f(j)
		} else {
			lost = append(lost, l)
		}
	}
	return lost
}

// become moves j to a state; one in which it is finished ends at end (zero: never).
func (b *Backend) become(j *job, s backends.State, end time.Time) {
	j.state, j.finished, j.expires = s, time.Time{}, time.Time{}
	switch s {
	case backends.StateReady:
		if !slices.Contains(b.freed, j.Queue) {
			b.freed = append(b.freed, j.Queue)
		}
	case backends.StateDone, backends.StateDead, backends.StateDeleted:
		j.finished, j.expires = b.now, end
	}
}

// in is d after now; zero where d is none.
func (b *Backend) in(d time.Duration) time.Time {
	if d <= 0 {
		return time.Time{}
	}
	return b.now.Add(d)
}

func (b *Backend) store(jobs []backends.NewJob) (stored []backends.Stored) {
	for _, n := range jobs {
		k := key{n.Queue, n.Key}
		if first := b.keys[k]; b.remembered(first) {
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
		if n.Delay > 0 {
			j.runAt = b.now.Add(n.Delay)
		}
		state := backends.StateReady
		if j.runAt.After(b.now) {
			state = backends.StateScheduled
		}
		b.become(j, state, time.Time{})
		stored = append(stored, backends.Stored{ID: j.id})
	}
	return stored
}

// remembered: j, who has a key, is unfinished, or the key's time is not over.
func (b *Backend) remembered(j *job) bool {
	return j != nil && (j.finished.IsZero() || b.now.Before(j.enqueued.Add(j.KeyTTL)))
}

func (b *Backend) ack(j *job, result []byte) {
	j.deliver("")
	b.become(j, backends.StateDone, b.in(j.keep))
	if j.result = bytes.Clone(result); j.keep == 0 {
		delete(b.jobs, j.id)
	}
}

// meet makes a job's fate come true.
func (b *Backend) meet(j *job, f backends.Disposition) {
	b.become(j, f.State, b.in(j.keepDead))
	j.Attempts, j.Losses, j.Prefetched, j.PrefetchLosses = f.Attempts, f.Losses, false, f.PrefetchLosses
	if f.Cause != "" {
		j.failures = append(j.failures, backends.Failure{Attempt: j.Attempts, Cause: f.Cause, Message: f.Message, At: b.now})
	}
	if f.State == backends.StateScheduled {
		j.runAt = b.now.Add(f.Delay)
	} else if !f.SamePosition {
		b.seq++
		j.pos, j.readyAt = b.seq, b.now
	}
}

func (b *Backend) extend(j *job, e backends.Extend) {
	j.deliver("")
	switch {
	case e.Bind != 0:
		j.owner, j.worker, j.lease = e.Bind, e.Worker, 0
	case e.Lease > 0:
		j.lease = e.Lease
	}
	j.leaseEnd = b.in(j.lease)
}

func (b *Backend) claim(h backends.Identity, c backends.Claim) (r backends.ClaimResult) {
	var size int64
	for _, p := range c.Queues {
		for !b.paused[p.Queue] && len(r.Jobs) < len(c.Slots) {
			j := b.next(p)
			if j == nil {
				break
			}
			j.timeout, j.Limit = cmp.Or(j.Timeout, p.Timeout), cmp.Or(j.MaxAttempts, p.MaxAttempts)
			j.Backoff, j.BackoffMax, j.keep, j.keepDead = p.Backoff, p.BackoffMax, p.RetainDone, p.RetainDead
			n := int64(len(j.Payload))
			if c.MaxPayload > 0 && n > c.MaxPayload {
				b.meet(j, backends.Disposition{
					State: backends.StateDead, Attempts: j.Attempts + 1,
					Cause: backends.CauseTooLarge, Message: backends.TooLarge(n, c.MaxPayload),
				})
				r.Failed.Add(j.Queue, backends.CauseTooLarge, true)
				continue
			}
			if size += n; (len(r.Jobs) > 0 || c.Strict) && c.MaxBytes > 0 && size > c.MaxBytes {
				r.More = true
				return r
			}
			r.Jobs = append(r.Jobs, b.take(j, h, c.Slots[len(r.Jobs)]))
		}
	}
	return r
}

// next is the first job in the order of p; nil: there is none.
func (b *Backend) next(p backends.Policy) (next *job) {
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

func (b *Backend) take(j *job, h backends.Identity, s backends.Slot) backends.Job {
	b.become(j, backends.StateClaimed, time.Time{})
	j.token, j.owner, j.worker, j.claimed = s.Token, h, s.Worker, b.now
	j.lease, j.leaseEnd, j.deadline = s.Lease, b.in(s.Lease), b.in(j.timeout)
	j.fence = max(j.fence+1, b.now.UnixMicro())
	if s.Prefetch {
		j.worker = "" // nobody yet
	}
	if j.Prefetched = s.Uncounted(j.PrefetchLosses, j.Limit); !j.Prefetched {
		j.Attempts++
	}
	g := backends.Job{
		ID: j.id, Queue: j.Queue, Token: j.token, Payload: bytes.Clone(j.Payload), Attempt: j.tried().Attempts,
		MaxAttempts: j.Limit, Fence: j.fence, Priority: j.Priority, EnqueuedAt: j.enqueued,
		Timeout: j.timeout, Headers: maps.Clone(j.Headers), Key: j.Key,
	}
	if n := len(j.failures); n > 0 {
		g.LastError = j.failures[n-1].Message
	}
	return g
}
