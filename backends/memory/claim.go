package memory

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

var errClosed = errors.New("the memory backend was closed")

func (t *tx) claim(h backends.Identity, c backends.Claim) (r backends.ClaimResult) {
	var size int64
	for _, p := range c.Queues {
		for !t.paused[p.Queue] && len(r.Jobs) < len(c.Slots) && len(t.ready[p.Queue]) > 0 {
			j := t.next(p)
			n := int64(len(j.Payload))
			if c.MaxPayload > 0 && n > c.MaxPayload {
				t.change(j, func() { t.tooLarge(j, p, c.MaxPayload) })
				continue
			}
			if size += n; len(r.Jobs) > 0 && c.MaxBytes > 0 && size > c.MaxBytes {
				r.More = true
				return r
			}
			t.change(j, func() { t.take(j, h, p, c.Slots[len(r.Jobs)]) })
			r.Jobs = append(r.Jobs, j.given())
		}
	}
	return r
}

// next is the first job in the order of p; there is one.
func (b *Backend) next(p backends.Policy) *job {
	l := b.ready[p.Queue]
	if !p.LIFO {
		return l[0]
	}
	end, _ := slices.BinarySearchFunc(l, l[0].Priority, func(j *job, prio int16) int {
		if j.Priority == prio {
			return -1
		}
		return 1
	})
	return l[end-1]
}

func (j *job) govern(p backends.Policy) {
	j.limit = cmp.Or(j.MaxAttempts, p.MaxAttempts)
	j.timeout = cmp.Or(j.Timeout, p.Timeout)
	j.backoff, j.backoffMax, j.keep, j.bury = p.Backoff, p.BackoffMax, p.Keep, p.KeepDead
	j.attempts++
}

func (t *tx) tooLarge(j *job, p backends.Policy, limit int64) {
	j.govern(p)
	t.fail(j, backends.CauseTooLarge, backends.TooLarge(int64(len(j.Payload)), limit))
	t.die(j)
}

func (t *tx) take(j *job, h backends.Identity, p backends.Policy, s backends.Slot) {
	j.govern(p)
	j.state, j.token, j.owner, j.worker, j.claimed = backends.StateClaimed, s.Token, h, s.Worker, t.now
	j.lease, j.leaseEnd, j.deadline = s.Lease, time.Time{}, time.Time{}
	if s.Lease > 0 {
		j.leaseEnd = t.now.Add(s.Lease)
	}
	if j.timeout > 0 {
		j.deadline = t.now.Add(j.timeout)
	}
	j.fence = max(j.fence+1, t.now.UnixMicro())
}

func (j *job) given() backends.Job {
	g := backends.Job{
		ID: j.id, Queue: j.Queue, Token: j.token, Payload: bytes.Clone(j.Payload), Attempt: j.attempts,
		MaxAttempts: j.limit, Fence: j.fence, Priority: j.Priority, EnqueuedAt: j.enqueued,
		Timeout: j.timeout, Headers: maps.Clone(j.Headers), Key: j.Key,
	}
	if n := len(j.failures); n > 0 {
		g.LastError = j.failures[n-1].Message
	}
	return g
}

// due is when the claim of j ends by the clock, and why; zero: never.
func (j *job) due() (time.Time, backends.Cause) {
	if j.deadline.IsZero() || !j.leaseEnd.IsZero() && j.leaseEnd.Before(j.deadline) {
		return j.leaseEnd, backends.CauseLeaseEnded
	}
	return j.deadline, backends.CauseTimedOut
}
