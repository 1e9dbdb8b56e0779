package memory

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Heartbeat implements backends.Backend.
func (b *Backend) Heartbeat(ctx context.Context, hb backends.Heartbeat) (p backends.HeartbeatResult, err error) {
	if err := b.fault(); err != nil {
		return p, err
	}
	err = b.do(ctx, func() error {
		h := b.sidecars[hb.Sidecar]
		if h == nil && hb.Kind == backends.HeartbeatJoin {
			h = &sidecar{}
			b.sidecars[hb.Sidecar] = h
		}
		leave := hb.Kind == backends.HeartbeatLeave // a sidecar can repeat its leave heartbeat
		if p.Alive = h != nil && !h.dead && (!h.left || leave); p.Alive {
			h.heartbeats++
			h.expires, h.left, h.last = b.now.Add(hb.Timeout), leave, hb
		}
		for id, h := range b.sidecars {
			if id != hb.Sidecar {
				p.Peers = append(p.Peers, backends.Peer{Sidecar: id, Heartbeats: h.heartbeats, Expired: b.expired(h), Dead: h.dead, DepthLeader: h.last.DepthLeader,
					Timeout: h.last.Timeout, Name: h.last.Name, Version: h.last.Version, Leases: h.last.Leases, Left: h.expires.Sub(b.now), HasLeft: h.left})
			}
		}
		return nil
	})
	return p, err
}

// ClaimedBy implements backends.Backend.
func (b *Backend) ClaimedBy(ctx context.Context, h backends.Identity, after string, limit int) (claimed []backends.ClaimedJob, err error) {
	if err := b.fault(); err != nil {
		return nil, err
	}
	err = b.do(ctx, func() error {
		from, _ := strconv.ParseInt(after, 10, 64) // 0, the start, if after is empty
		for _, j := range b.sorted(limit, bySeq, func(j *job) bool {
			return j.state == backends.StateClaimed && j.owner == h && j.seq > from
		}) {
			claimed = append(claimed, backends.ClaimedJob{Lease: backends.Lease{Job: j.id, Token: j.token}, Queue: j.Queue, Timed: j.lease > 0})
		}
		return nil
	})
	return claimed, err
}

// sorted returns the first limit jobs that match, sorted by order and then by sequence number.
func (b *Backend) sorted(limit int, order func(x, y *job) int, match func(*job) bool) (found []*job) {
	for _, j := range b.jobs {
		if match(j) {
			found = append(found, j)
		}
	}
	slices.SortFunc(found, func(x, y *job) int { return cmp.Or(order(x, y), bySeq(x, y)) })
	return found[:min(limit, len(found))]
}

func bySeq(x, y *job) int         { return cmp.Compare(x.seq, y.seq) }
func byRunAt(x, y *job) int       { return x.runAt.Compare(y.runAt) }
func byStartBefore(x, y *job) int { return x.startBefore.Compare(y.startBefore) }
func byClaimed(x, y *job) int     { return x.claimed.Compare(y.claimed) }
func byFinished(x, y *job) int    { return x.finished.Compare(y.finished) }

// Maintain implements backends.Backend.
func (b *Backend) Maintain(ctx context.Context, s backends.Maintenance) (r backends.MaintenanceResult, err error) {
	if err := b.fault(); err != nil {
		return r, err
	}
	r.Reaped = map[backends.Cause]int{}
	err = b.do(ctx, func() error {
		each := func(order func(x, y *job) int, match func(*job) bool, f func(*job)) int {
			found := b.sorted(s.Limit, order, match)
			for _, j := range found {
				f(j)
			}
			r.More = r.More || len(found) == s.Limit
			return len(found)
		}
		past := func(at time.Time) bool { return !at.IsZero() && !at.After(b.now) }
		reap := func(j *job, c backends.Cause) {
			r.Reaped[c]++
			b.apply(j, j.counted().AfterReap(c, s.Jitter.Of(j.Queue)))
			r.Failed.Add(j.Queue, c, j.state == backends.StateDead)
		}
		b.cancelled[s.Sidecar] = slices.DeleteFunc(b.cancelled[s.Sidecar], func(t backends.Token) bool { return slices.Contains(s.Handled, t) })
		r.Cancelled = slices.Clone(b.cancelled[s.Sidecar])
		r.Expired = each(byStartBefore, func(j *job) bool { return j.waits() && b.isExpired(j) }, func(j *job) {
			r.Failed.Add(j.Queue, backends.CauseExpired, !j.Expiry.Remove)
			b.expire(j)
		})
		r.Promoted = each(byRunAt, func(j *job) bool {
			return j.state == backends.StateScheduled && past(j.runAt)
		}, func(j *job) {
			b.apply(j, backends.Disposition{State: backends.StateReady, Attempts: j.Attempts, Losses: j.Losses, PrefetchLosses: j.PrefetchLosses})
		})
		each(byClaimed, func(j *job) bool {
			at, _ := j.due()
			return j.state == backends.StateClaimed && past(at)
		}, func(j *job) { _, c := j.due(); reap(j, c) })
		b.evict(s.Suspects)
		each(byClaimed, b.orphaned, func(j *job) { reap(j, backends.CauseSidecarLost) })
		b.deleteEvicted()
		if s.Prune {
			found := b.sorted(s.PruneLimit(), bySeq, func(j *job) bool { return past(j.expires) })
			for _, j := range found {
				r.PruneOverdue = max(r.PruneOverdue, b.now.Sub(j.expires))
				delete(b.jobs, j.id)
			}
			r.AddPruned(len(found), len(found), s.PruneLimit(), time.Nanosecond)
			n := b.pruneKeys(s.PruneLimit())
			r.AddPruned(n, n, s.PruneLimit(), time.Nanosecond)
		}
		r.Pending = b.pending
		r.MadeReady = b.madeReady
		r.MadeReady = append(r.MadeReady, b.admit()...)
		r.Next = b.nextDue()
		r.BatchesDue = !s.Watched && b.batchesDue()
		if at := b.nextSchedule(); at != nil && (!s.Watched || s.AdoptedSchedules) {
			r.NextSchedule = max(at.Sub(b.now), 0)
			r.ScheduleDue = r.NextSchedule == 0
		}
		for _, q := range s.Waiting {
			if b.firstReady(backends.Policy{Queue: q}) != nil {
				r.Ready = append(r.Ready, q)
			}
		}
		return nil
	})
	return r, err
}

// evict marks each suspect dead that has not sent a heartbeat since it was reported.
func (b *Backend) evict(suspects []backends.Suspect) {
	for _, s := range suspects {
		if h := b.sidecars[s.Sidecar]; h != nil && h.heartbeats == s.Heartbeats && b.expired(h) {
			h.dead = true
		}
	}
}

func (b *Backend) expired(h *sidecar) bool {
	return backends.HeartbeatExpired(h.expires.Sub(b.now), h.last.Timeout, h.left)
}

// orphaned reports whether j is claimed with a session lease and its sidecar is dead or unknown.
func (b *Backend) orphaned(j *job) bool {
	h := b.sidecars[j.owner]
	return j.state == backends.StateClaimed && j.lease == 0 && (h == nil || h.dead)
}

func (b *Backend) deleteEvicted() {
	for id, h := range b.sidecars {
		if h.dead && len(b.sorted(1, bySeq, func(j *job) bool { return j.owner == id && b.orphaned(j) })) == 0 {
			delete(b.sidecars, id)
			delete(b.cancelled, id)
		}
	}
}

func (b *Backend) pruneKeys(limit int) (n int) {
	for k, j := range b.keys {
		if n < limit && !b.remembered(j) {
			delete(b.keys, k)
			n++
		}
	}
	return n
}

func (b *Backend) nextDue() time.Duration {
	next := time.Duration(-1)
	for _, j := range b.jobs {
		at, _ := j.due()
		if j.waits() && !j.startBefore.IsZero() && (at.IsZero() || j.startBefore.Before(at)) {
			at = j.startBefore
		}
		if wait := max(at.Sub(b.now), 0); !at.IsZero() && (next < 0 || wait < next) {
			next = wait
		}
	}
	return next
}

// waits reports whether j is ready, blocked or scheduled.
func (j *job) waits() bool {
	return j.state == backends.StateReady || j.state == backends.StateBlocked || j.state == backends.StateScheduled
}

// due returns when j changes state by the clock, and the cause if j is claimed. The zero time means
// never.
func (j *job) due() (time.Time, backends.Cause) {
	switch {
	case j.state == backends.StateScheduled:
		return j.runAt, ""
	case j.state != backends.StateClaimed:
		return time.Time{}, ""
	case j.deadline.IsZero() || !j.leaseEnd.IsZero() && j.leaseEnd.Before(j.deadline):
		return j.leaseEnd, backends.CauseLeaseEnded
	}
	return j.deadline, backends.CauseTimedOut
}
