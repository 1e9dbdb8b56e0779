package memory

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Beat implements backends.Backend.
func (b *Backend) Beat(ctx context.Context, beat backends.Beat) (p backends.Pulse, err error) {
	if err := b.fault("beat"); err != nil {
		return p, err
	}
	err = b.do(ctx, func(t *tx) error {
		h := b.hosts[beat.Host]
		if h == nil && beat.Kind == backends.BeatJoin {
			h = &host{}
			b.hosts[beat.Host] = h
		}
		if p.Alive = h.alive(); p.Alive {
			h.beats++
			h.expires, h.left = t.now.Add(beat.Lease), beat.Kind == backends.BeatLeave
		}
		for id, h := range b.hosts {
			if id != beat.Host {
				p.Peers = append(p.Peers, backends.Peer{Host: id, Beats: h.beats, Expired: !t.now.Before(h.expires), Dead: h.dead})
			}
		}
		return nil
	})
	return p, err
}

// Held implements backends.Backend.
func (b *Backend) Held(ctx context.Context, h backends.Identity, after string, limit int) (held []backends.Held, err error) {
	if err := b.fault("held"); err != nil {
		return nil, err
	}
	err = b.do(ctx, func(t *tx) error {
		for _, j := range t.sorted(limit, bySeq, func(j *job) bool {
			return j.state == backends.StateClaimed && j.owner == h && j.seq > number(after)
		}) {
			held = append(held, backends.Held{Lease: backends.Lease{Job: j.id, Token: j.token}, Queue: j.Queue, Timed: j.lease > 0})
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
func (b *Backend) Sweep(ctx context.Context, s backends.Sweep) (r backends.Swept, err error) {
	if err := b.fault("sweep"); err != nil {
		return r, err
	}
	r.Reaped = map[backends.Cause]int{}
	err = b.do(ctx, func(t *tx) error {
		bite := func(order func(x, y *job) int, match func(*job) bool, f func(*job)) int {
			found := t.sorted(s.Limit, order, match)
			for _, j := range found {
				t.change(j, func() { f(j) })
			}
			r.More = r.More || len(found) == s.Limit
			return len(found)
		}
		r.Promoted = bite(byRunAt, func(j *job) bool {
			return j.state == backends.StateScheduled && !j.runAt.After(t.now)
		}, func(j *job) { t.again(j, 0) })
		reap := func(j *job, c backends.Cause) {
			r.Reaped[c]++
			t.release(j, backends.Release{Cause: c})
		}
		bite(byClaimed, func(j *job) bool {
			at, _ := j.due()
			return j.state == backends.StateClaimed && !at.IsZero() && !at.After(t.now)
		}, func(j *job) { _, c := j.due(); reap(j, c) })
		t.giveUp(s.Suspects)
		bite(byClaimed, t.orphan, func(j *job) { reap(j, backends.CauseSidecarLost) })
		t.forgetHosts()
		if s.Prune {
			r.Pruned = bite(bySeq, func(j *job) bool {
				return !j.expires.IsZero() && !j.expires.After(t.now)
			}, func(j *job) { t.remove(j, j.state) }) + t.pruneKeys(s.Limit)
		}
		r.Freed, r.Next = t.freed, t.nextDue()
		for _, q := range s.Waiting {
			if len(t.ready[q]) > 0 {
				r.Ready = append(r.Ready, q)
			}
		}
		return nil
	})
	return r, err
}

// giveUp marks the suspects dead that are still what they were.
func (t *tx) giveUp(suspects []backends.Suspect) {
	for _, s := range suspects {
		if h := t.hosts[s.Host]; h != nil && h.beats == s.Beats && !t.now.Before(h.expires) {
			h.dead = true
		}
	}
}

// orphan: nobody is left to answer for the claim of j.
func (b *Backend) orphan(j *job) bool {
	h := b.hosts[j.owner]
	return j.state == backends.StateClaimed && j.lease == 0 && (h == nil || h.dead)
}

func (t *tx) forgetHosts() {
	for id, h := range t.hosts {
		if h.dead && len(t.sorted(1, bySeq, func(j *job) bool { return j.owner == id && t.orphan(j) })) == 0 {
			delete(t.hosts, id)
		}
	}
}

func (t *tx) pruneKeys(limit int) (n int) {
	for k, v := range t.keys {
		if n < limit && !t.unfinished(v) && !t.now.Before(v.expires) {
			delete(t.keys, k)
			n++
		}
	}
	return n
}

func (t *tx) nextDue() time.Duration {
	next := time.Duration(-1)
	for _, j := range t.jobs {
		at, _ := j.due()
		switch j.state {
		case backends.StateScheduled:
			at = j.runAt
		case backends.StateClaimed:
		default:
			continue
		}
		if wait := max(at.Sub(t.now), 0); !at.IsZero() && (next < 0 || wait < next) {
			next = wait
		}
	}
	return next
}
