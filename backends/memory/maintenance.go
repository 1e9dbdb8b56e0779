package memory

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Beat implements backends.Backend.
func (b *Backend) Heartbeat(ctx context.Context, beat backends.Heartbeat) (p backends.HeartbeatResult, err error) {
	if err := b.fault("beat"); err != nil {
		return p, err
	}
	err = b.do(ctx, func() error {
		h := b.hosts[beat.Host]
		if h == nil && beat.Kind == backends.HeartbeatJoin {
			h = &host{}
			b.hosts[beat.Host] = h
		}
		leave := beat.Kind == backends.HeartbeatLeave // which may be said twice
		if p.Alive = h != nil && !h.dead && (!h.left || leave); p.Alive {
			h.beats++
			h.expires, h.left, h.reads, h.lease = b.now.Add(beat.Timeout), leave, beat.DepthLeader, beat.Timeout
		}
		for id, h := range b.hosts {
			if id != beat.Host {
				p.Peers = append(p.Peers, backends.Peer{Host: id, Heartbeats: h.beats, Expired: b.ended(h), Dead: h.dead, DepthLeader: h.reads})
			}
		}
		return nil
	})
	return p, err
}

// Held implements backends.Backend.
func (b *Backend) ClaimedBy(ctx context.Context, h backends.Identity, after string, limit int) (held []backends.ClaimedJob, err error) {
	if err := b.fault("held"); err != nil {
		return nil, err
	}
	err = b.do(ctx, func() error {
		from, _ := strconv.ParseInt(after, 10, 64) // 0, the beginning, where after is none
		for _, j := range b.sorted(limit, bySeq, func(j *job) bool {
			return j.state == backends.StateClaimed && j.owner == h && j.seq > from
		}) {
			held = append(held, backends.ClaimedJob{Lease: backends.Lease{Job: j.id, Token: j.token}, Queue: j.Queue, Timed: j.lease > 0})
		}
		return nil
	})
	return held, err
}

// sorted gives the first limit jobs that match, in the order of less.
func (b *Backend) sorted(limit int, order func(x, y *job) int, match func(*job) bool) (found []*job) {
	for _, j := range b.jobs {
		if match(j) {
			found = append(found, j)
		}
	}
	slices.SortFunc(found, func(x, y *job) int { return cmp.Or(order(x, y), bySeq(x, y)) })
	return found[:min(limit, len(found))]
}

func bySeq(x, y *job) int      { return cmp.Compare(x.seq, y.seq) }
func byRunAt(x, y *job) int    { return x.runAt.Compare(y.runAt) }
func byClaimed(x, y *job) int  { return x.claimed.Compare(y.claimed) }
func byFinished(x, y *job) int { return x.finished.Compare(y.finished) }

// Sweep implements backends.Backend.
func (b *Backend) Maintain(ctx context.Context, s backends.Maintenance) (r backends.MaintenanceResult, err error) {
	if err := b.fault("sweep"); err != nil {
		return r, err
	}
	r.Reaped = map[backends.Cause]int{}
	err = b.do(ctx, func() error {
		bite := func(order func(x, y *job) int, match func(*job) bool, f func(*job)) int {
			found := b.sorted(s.Limit, order, match)
			for _, j := range found {
				f(j)
			}
			r.More = r.More || len(found) == s.Limit
			return len(found)
		}
		over := func(at time.Time) bool { return !at.IsZero() && !at.After(b.now) }
		reap := func(j *job, c backends.Cause) {
			r.Reaped[c]++
			b.meet(j, j.tried().AfterReap(c))
			r.Failed.Add(j.Queue, c, j.state == backends.StateDead)
		}
		r.Promoted = bite(byRunAt, func(j *job) bool {
			return j.state == backends.StateScheduled && over(j.runAt)
		}, func(j *job) {
			b.meet(j, backends.Disposition{State: backends.StateReady, Attempts: j.Attempts, Losses: j.Losses, PrefetchLosses: j.PrefetchLosses})
		})
		bite(byClaimed, func(j *job) bool {
			at, _ := j.due()
			return j.state == backends.StateClaimed && over(at)
		}, func(j *job) { _, c := j.due(); reap(j, c) })
		b.giveUp(s.Suspects)
		bite(byClaimed, b.orphan, func(j *job) { reap(j, backends.CauseSidecarLost) })
		b.forgetHosts()
		if s.Prune {
			found := b.sorted(s.PruneLimit(), bySeq, func(j *job) bool { return over(j.expires) })
			for _, j := range found {
				r.PruneOverdue = max(r.PruneOverdue, b.now.Sub(j.expires))
				delete(b.jobs, j.id)
			}
			r.AddPruned(len(found), len(found), s.PruneLimit(), time.Nanosecond)
			n := b.pruneKeys(s.PruneLimit())
			r.AddPruned(n, n, s.PruneLimit(), time.Nanosecond)
		}
		r.MadeReady, r.Next = b.freed, b.nextDue()
		for _, q := range s.Waiting {
			if b.next(backends.Policy{Queue: q}) != nil {
				r.Ready = append(r.Ready, q)
			}
		}
		return nil
	})
	return r, err
}

// giveUp marks the suspects dead that are still what they were.
func (b *Backend) giveUp(suspects []backends.Suspect) {
	for _, s := range suspects {
		if h := b.hosts[s.Host]; h != nil && h.beats == s.Heartbeats && b.ended(h) {
			h.dead = true
		}
	}
}

func (b *Backend) ended(h *host) bool { return backends.Ended(h.expires.Sub(b.now), h.lease, h.left) }

// orphan: nobody is left to answer for the claim of j.
func (b *Backend) orphan(j *job) bool {
	h := b.hosts[j.owner]
	return j.state == backends.StateClaimed && j.lease == 0 && (h == nil || h.dead)
}

func (b *Backend) forgetHosts() {
	for id, h := range b.hosts {
		if h.dead && len(b.sorted(1, bySeq, func(j *job) bool { return j.owner == id && b.orphan(j) })) == 0 {
			delete(b.hosts, id)
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
		if wait := max(at.Sub(b.now), 0); !at.IsZero() && (next < 0 || wait < next) {
			next = wait
		}
	}
	return next
}

// due is when a job moves by the clock, and why a claimed one does; zero: never.
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
