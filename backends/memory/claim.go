package memory

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func (b *Backend) claim(h backends.Identity, c backends.Claim) (r backends.ClaimResult) {
	var size int64
	for _, p := range c.Queues {
		for !b.paused[p.Queue] && len(r.Jobs) < len(c.Slots) && len(b.ready[p.Queue]) > 0 {
			j := b.next(p)
			n := int64(len(j.Payload))
			if c.MaxPayload > 0 && n > c.MaxPayload {
				b.change(j, func() { b.tooLarge(j, p, c.MaxPayload) })
				continue
			}
			if size += n; len(r.Jobs) > 0 && c.MaxBytes > 0 && size > c.MaxBytes {
				r.More = true
				return r
			}
			b.change(j, func() { b.take(j, h, p, c.Slots[len(r.Jobs)]) })
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
	j.Limit, j.timeout = cmp.Or(j.MaxAttempts, p.MaxAttempts), cmp.Or(j.Timeout, p.Timeout)
	j.Backoff, j.BackoffMax, j.keep, j.keepDead = p.Backoff, p.BackoffMax, p.Keep, p.KeepDead
}

func (b *Backend) tooLarge(j *job, p backends.Policy, limit int64) {
	j.govern(p)
	b.meet(j, backends.Fate{
		State: backends.StateDead, Attempts: j.Attempts + 1, Unrecorded: j.Unrecorded,
		Cause: backends.CauseTooLarge, Message: backends.TooLarge(int64(len(j.Payload)), limit),
	})
}

func (b *Backend) take(j *job, h backends.Identity, p backends.Policy, s backends.Slot) {
	j.govern(p)
	j.state, j.token, j.owner, j.worker, j.claimed = backends.StateClaimed, s.Token, h, s.Worker, b.now
	if j.Ahead = s.Uncharged(j.Unrecorded, j.Limit); !j.Ahead {
		j.Attempts++
	}
	if s.Ahead {
		j.worker = ""
	}
	j.lease, j.leaseEnd, j.deadline = s.Lease, time.Time{}, time.Time{}
	if s.Lease > 0 {
		j.leaseEnd = b.now.Add(s.Lease)
	}
	if j.timeout > 0 {
		j.deadline = b.now.Add(j.timeout)
	}
	j.fence = max(j.fence+1, b.now.UnixMicro())
}

func (j *job) given() backends.Job {
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
