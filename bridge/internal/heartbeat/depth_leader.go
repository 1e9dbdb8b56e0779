package heartbeat

import (
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// The depths of the queues are read by one sidecar of a database at a time, so that they cost
// the database one look however many sidecars are asked for metrics, and a sum over them counts
// each job once.
//
// Who is asked for metrics and sees no other sidecar that reads says in its next heartbeat that
// it does, and reads when the heartbeat after that still shows no other. Of two that said so at the
// same time the one with the larger identity takes it back, and the other waits for that. Whoever
// reads goes on, whoever comes. So there are never two: of any two that said so,
// whoever said it later sees the other. The heartbeat is also the lease: a reader stops when its own
// is late, which is before the others take it for expired.
type depthLeader struct {
	wantedAt atomic.Int64 // when metrics were asked for last, by clock; 0: never

	// heartbeater.mu guards these.
	role      role
	announced bool // the last heartbeat that reached the database said that it reads
}

type role int

const (
	following  role = iota // another one reads, or nobody asks
	announcing             // it says that it reads, and has not seen yet that it is alone
	leading
)

// wantedFor is how long metrics count as wanted after they were asked for.
const wantedFor = 5 * time.Minute

// wanted reports whether metrics were asked for lately.
func (r *depthLeader) wanted(now time.Duration) bool {
	asked := time.Duration(r.wantedAt.Load())
	return asked != 0 && now-asked < wantedFor
}

// announcesDepths is what the next heartbeat says. k.mu is not held.
func (k *Heartbeater) announcesDepths() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.depthLeader.role != following
}

// update follows from a heartbeat that reached the database and said that, and from the peers that it
// showed; lapsed: the heartbeat before was late. again: there is something to say at once.
// k.mu is held.
func (r *depthLeader) update(id backends.Identity, said, lapsed bool, peers []backends.Peer, now time.Duration) (again bool) {
	others, smaller := false, false
	for _, p := range peers {
		if p.DepthLeader && !p.Dead && !p.Expired {
			others = true
			smaller = smaller || p.Host < id
		}
	}
	if lapsed { // what it said before may not have counted any more
		r.announced = false
		if r.role == leading {
			r.role = announcing
		}
	}
	switch {
	case !r.wanted(now):
		r.role = following
	case r.role == following && !others:
		r.role = announcing
	case r.role == announcing && r.announced && said && !others:
		r.role = leading
	case r.role == announcing && smaller:
		r.role = following
	}
	r.announced = said
	return said != (r.role != following) || r.role == announcing && !others
}

// WantDepths notes that metrics are asked for, and has the next heartbeat look who reads.
func (k *Heartbeater) WantDepths() {
	now := k.Clock()
	before := time.Duration(k.depthLeader.wantedAt.Swap(int64(max(now, 1))))
	if before != 0 && now-before < wantedFor {
		return
	}
	k.BeatNow()
	for end := now + FirstWait; k.Clock() < end && !k.LeadsDepths(); {
		time.Sleep(FirstWait / 100)
	}
}

// FirstWait is for how long those who ask for metrics the first time wait until it is known
// who reads: so that who is alone sees the depths at once.
const FirstWait = 500 * time.Millisecond

// LeadsDepths reports whether it is this sidecar that reads, at this moment.
func (k *Heartbeater) LeadsDepths() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.depthLeader.role == leading && k.lastErr == nil && k.Clock() < k.freshUntil
}
