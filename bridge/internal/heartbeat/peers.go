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
func (w peerState) watch(own timeout) timeout {
	if w.hasLeft {
		return min(own, timeout(w.timeout))
	}
	return timeout(w.timeout)
}

// suspectIn returns how long it takes until the peer is suspect, if no heartbeat comes. It is expired.
func (w peerState) suspectIn(own timeout, now time.Duration) time.Duration {
	return max(w.since+time.Duration(w.watch(own))-now, 0)
}

// watchPeers records the peers' heartbeats and reports whether a peer is dead or suspect. If restart is true, it
// forgets how long each heartbeat has not changed, so no peer is suspect before its timeout has passed again. Set
// restart after this sidecar's own heartbeats were late: the cause (an unreachable or locked database, a stopped
// process) possibly delayed those of the peers, too. k.mu is held.
func (k *Heartbeater) watchPeers(peers []backends.Peer, restart bool) (suspected bool) {
	now, own := k.Clock(), k.Times.sidecarTimeout()
	next := make(map[backends.Identity]peerState, len(peers))
	for _, p := range peers {
		w, seen := k.peers[p.Host]
		changed := restart || !seen || w.heartbeats != p.Heartbeats
		w.heartbeats, w.expired, w.dead, w.hasLeft, w.timeout = p.Heartbeats, p.Expired && !p.Dead, p.Dead, p.HasLeft, p.Timeout
		if changed {
			w.since = now
		}
		if !seen {
			w.since -= w.watch(own).headStart()
		}
		next[p.Host] = w
		suspected = suspected || w.dead || w.expired && w.suspectIn(own, now) == 0
	}
	k.peers = next
	return suspected
}

// Suspects returns the peers to declare dead.
func (k *Heartbeater) Suspects() []backends.Suspect {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, own := k.Clock(), k.Times.sidecarTimeout()
	var out []backends.Suspect
	for host, w := range k.peers {
		if w.expired && w.suspectIn(own, now) == 0 {
			out = append(out, backends.Suspect{Host: host, Heartbeats: w.heartbeats, Timeout: w.timeout})
		}
	}
	return out
}

// Watched reports whether other sidecars watch all sidecars of the database, so that this one doesn't need to.
func (k *Heartbeater) Watched() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.watched && k.identity != 0
}

// Watchers returns how many other sidecars of the database watch, if this one does.
func (k *Heartbeater) Watchers() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.peers {
		if !w.expired {
			n++
		}
	}
	return min(n, backends.Watchers-1)
}

// UntilSuspect returns how long it takes until the next expired peer is suspect; < 0: there is none.
func (k *Heartbeater) UntilSuspect() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, own, next := k.Clock(), k.Times.sidecarTimeout(), time.Duration(-1)
	for _, w := range k.peers {
		if left := w.suspectIn(own, now); w.expired && left > 0 && (next < 0 || left < next) {
			next = left
		}
	}
	return next
}

// pause returns how long to wait before the next heartbeat. A sidecar that watches also has to see those of peers with
// a shorter timeout in time.
func (k *Heartbeater) pause() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	shortest := k.Times.sidecarTimeout()
	for _, w := range k.peers {
		if !k.watched && !w.dead && !w.hasLeft && w.timeout > 0 {
			shortest = min(shortest, timeout(w.timeout))
		}
	}
	return shortest.every()
}
