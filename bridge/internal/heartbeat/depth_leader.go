package heartbeat

import (
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// depthLeader decides whether this sidecar reads the queue depths. One sidecar of a database reads them for all, so
// that they cost one query however many sidecars are scraped, and a sum over the sidecars counts each job once.
//
// A sidecar that is scraped and sees no leader announces itself in its next heartbeat. It leads if the heartbeat after
// that still shows no other. Of two that announced themselves at the same time, the one with the larger identity
// withdraws. A leader stays the leader. So there are never two: of any two that announced themselves, the later one
// sees the other. The heartbeat is also the lease: a leader stops when its own heartbeat is late, which is before the
// others consider it expired.
type depthLeader struct {
	requestedAt atomic.Int64 // time of the last request for metrics, by clock; 0: never

	// heartbeater.mu guards these.
	role      role
	announced bool // the last successful heartbeat announced that this sidecar reads
}

type role int

const (
	following  role = iota // another sidecar reads, or no metrics are requested
	announcing             // it announces that it reads, and waits for proof that it is alone
	leading
)

// requestAge is how long a request for metrics counts.
const requestAge = 5 * time.Minute

// requestedRecently reports whether metrics were requested within requestAge.
func (d *depthLeader) requestedRecently(now time.Duration) bool {
	at := time.Duration(d.requestedAt.Load())
	return at != 0 && now-at < requestAge
}

// announcesLeadership reports whether the next heartbeat announces this sidecar, and whether it has to return all peers.
// h.mu is not held.
func (h *Heartbeater) announcesLeadership() (announces, all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	announces, now := h.depthLeader.role != following, h.Clock()
	due := h.allPeersAt == 0 || now-h.allPeersAt >= time.Duration(h.allPeers)*allPeersPause
	return announces, announces || due && h.depthLeader.requestedRecently(now)
}

// allPeersPause is how long a watched sidecar waits after a list of all peers, for each of them. So all
// sidecars that need to find a leader together read a number of rows that grows with the number of sidecars, and not with its square.
const allPeersPause = 60 * time.Millisecond

// update applies a successful heartbeat: announced is whether the heartbeat announced this sidecar, and peers are those
// that it returned. lapsed means that the heartbeat before was late. update reports whether another heartbeat is
// needed immediately. h.mu is held.
func (d *depthLeader) update(id backends.Identity, announced, lapsed bool, peers []backends.Peer, now time.Duration) (again bool) {
	others, smaller := false, false
	for _, p := range peers {
		if p.DepthLeader && !p.Dead && !p.Expired {
			others = true
			smaller = smaller || p.Sidecar < id
		}
	}
	if lapsed { // the earlier announcement had possibly expired
		d.announced = false
		if d.role == leading {
			d.role = announcing
		}
	}
	switch {
	case !d.requestedRecently(now):
		d.role = following
	case d.role == following && !others:
		d.role = announcing
	case d.role == announcing && d.announced && announced && !others:
		d.role = leading
	case d.role == announcing && smaller:
		d.role = following
	}
	d.announced = announced
	return announced != (d.role != following) || d.role == announcing && !others
}

// RequestDepths records that metrics need the depths, and sends a heartbeat to find out which sidecar leads.
func (h *Heartbeater) RequestDepths() {
	now := h.Clock()
	before := time.Duration(h.depthLeader.requestedAt.Swap(int64(max(now, 1))))
	if before != 0 && now-before < requestAge {
		return
	}
	h.mu.Lock()
	h.allPeersAt = 0
	h.mu.Unlock()
	h.SendNow()
	for end := now + FirstWait; h.Clock() < end && !h.LeadsDepths(); {
		time.Sleep(FirstWait / 100)
	}
}

// FirstWait is how long the first request for metrics waits until the leader is known, so that a lone sidecar
// reports depths at once.
const FirstWait = 500 * time.Millisecond

// LeadsDepths reports whether this sidecar reads the depths at this moment.
func (h *Heartbeater) LeadsDepths() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.depthLeader.role == leading && h.lastErr == nil && h.Clock() < h.freshUntil
}
