package heartbeat

import (
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// peerState is what this sidecar has seen of a peer.
type peerState struct {
	heartbeats uint64
	since      time.Duration // when heartbeats was first seen, by clock
	expired    bool
	dead       bool
	hasLeft    bool
	timeout    time.Duration // the peer's
}

// watch returns for how long the heartbeat must not change before the peer is suspect. A sidecar that left sends no more,
// and can have a very long restart grace: own is enough then.
func (p peerState) watch(own timeout) timeout {
	if p.hasLeft {
		return min(own, timeout(p.timeout))
	}
	return timeout(p.timeout)
}

// suspectIn returns how long it takes until the peer is suspect, if no heartbeat comes. It is expired.
func (p peerState) suspectIn(own timeout, now time.Duration) time.Duration {
	return max(p.since+time.Duration(p.watch(own))-now, 0)
}

// watchPeers records the peers' heartbeats and reports whether a peer is dead or suspect. If this sidecar sent none for as long as a peer trusts
// its own, the peer isn't suspect before its timeout has passed again: the cause (an unreachable or locked database, a stopped process)
// possibly delayed its heartbeats too. joined: this sidecar begins to watch. h.mu is held.
func (h *Heartbeater) watchPeers(peers []backends.Peer, joined bool) (suspected bool) {
	now, own := h.Clock(), h.Times.sidecarTimeout()
	next := make(map[backends.Identity]peerState, len(peers))
	for _, p := range peers {
		w, seen := h.peers[p.Sidecar]
		changed := joined || !seen || w.heartbeats != p.Heartbeats
		w.heartbeats, w.expired, w.dead, w.hasLeft, w.timeout = p.Heartbeats, p.Expired && !p.Dead, p.Dead, p.HasLeft, p.Timeout
		if changed || now-h.lastSent >= w.watch(own).trusted() {
			w.since = now
		}
		if !seen {
			w.since -= w.watch(own).headStart()
		}
		next[p.Sidecar] = w
		suspected = suspected || w.dead || w.expired && w.suspectIn(own, now) == 0
	}
	h.peers = next
	return suspected
}

// Suspects returns the peers to declare dead.
func (h *Heartbeater) Suspects() []backends.Suspect {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, own := h.Clock(), h.Times.sidecarTimeout()
	var out []backends.Suspect
	for sidecar, w := range h.peers {
		if w.expired && w.suspectIn(own, now) == 0 {
			out = append(out, backends.Suspect{Sidecar: sidecar, Heartbeats: w.heartbeats, Timeout: w.timeout})
		}
	}
	return out
}

// Watched reports whether other sidecars watch all sidecars of the database, so that this one doesn't need to.
func (h *Heartbeater) Watched() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watched && h.identity != 0
}

// Watchers returns how many other sidecars of the database watch, if this one does.
func (h *Heartbeater) Watchers() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.peers {
		if !w.expired {
			n++
		}
	}
	return min(n, backends.Watchers-1)
}

// UntilSuspect returns how long it takes until the next expired peer is suspect; < 0: there is none.
func (h *Heartbeater) UntilSuspect() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, own, next := h.Clock(), h.Times.sidecarTimeout(), time.Duration(-1)
	for _, w := range h.peers {
		if left := w.suspectIn(own, now); w.expired && left > 0 && (next < 0 || left < next) {
			next = left
		}
	}
	return next
}

// pause returns how long to wait before the next heartbeat. A sidecar that watches also has to see those of peers with
// a shorter timeout in time.
func (h *Heartbeater) pause() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	shortest := h.Times.sidecarTimeout()
	for _, w := range h.peers {
		if !h.watched && !w.dead && !w.hasLeft && w.timeout > 0 {
			shortest = min(shortest, timeout(w.timeout))
		}
	}
	return shortest.every()
}
