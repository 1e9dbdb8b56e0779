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
	timeout    time.Duration // the peer's
}

// watchPeers records the peers' heartbeats and reports whether a peer is dead or suspect. If restart is true, it
// forgets how long each heartbeat has not changed, so no peer is suspect before another observation period. Set
// restart after this sidecar's own heartbeats were late: the cause (an unreachable or locked database, a stopped
// process) possibly delayed those of the peers, too. k.mu is held.
func (k *Heartbeater) watchPeers(peers []backends.Peer, restart bool) (suspected bool) {
	now, observe := k.Clock(), k.Times.sidecarTimeout().observe()
	next := make(map[backends.Identity]peerState, len(peers))
	for _, p := range peers {
		w, seen := k.peers[p.Host]
		if restart || !seen || w.heartbeats != p.Heartbeats {
			w = peerState{heartbeats: p.Heartbeats, since: now}
		}
		w.expired, w.timeout = p.Expired && !p.Dead, p.Timeout
		next[p.Host] = w
		suspected = suspected || p.Dead || w.expired && now-w.since >= observe
	}
	k.peers = next
	return suspected
}

// Suspects returns the peers to declare dead.
func (k *Heartbeater) Suspects() []backends.Suspect {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, observe := k.Clock(), k.Times.sidecarTimeout().observe()
	var out []backends.Suspect
	for host, w := range k.peers {
		if w.expired && now-w.since >= observe {
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
	now, observe, next := k.Clock(), k.Times.sidecarTimeout().observe(), time.Duration(-1)
	for _, w := range k.peers {
		if left := w.since + observe - now; w.expired && left > 0 && (next < 0 || left < next) {
			next = left
		}
	}
	return next
}
