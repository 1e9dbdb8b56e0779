package bridge

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// keeper keeps this sidecar alive in one database: it joins under a new
// identity, beats, compares what the database thinks it has with what it knows,
// and watches the other sidecars' beats.
//
// How the times follow from the host lease H (design.md §2.4: a dead sidecar's
// jobs are free within H):
//
//	beat every H/6; each beat is good for 13/20 H from when it reached the database;
//	a peer is suspected when its end has passed and its beat stood still for 12/20 H
//	here. So a sidecar that dies right after a beat is given up at most at 12/20 H
//	plus two beats of the others (H/6 each: one until they saw it, one until they
//	look again): below H. And as long as a sidecar trusts its own beat, nobody
//	suspects it, wherever the database's clock is set meanwhile.
type keeper struct {
	backend *link
	times   *leaseTimes
	ledger  *ledger
	metrics func() *databaseMetrics
	log     *slog.Logger
	clock   func() time.Duration

	// lost is told which claims the sessions no longer have.
	lost func(map[*account][]heldJob)
	// abandoned is told that an identity is given up, before its leases are dropped.
	abandoned func()
	// release gives claims back, uncharged, that nobody here knows of.
	release func(owner backends.Identity, leases []backends.Lease)
	// suspected wakes the sweeper.
	suspected func()
	// revived wakes the committer: claims may be made (again).
	revived func()

	poke chan struct{} // 1: one wish to beat at once is enough

	mu         sync.Mutex
	identity   backends.Identity // 0: not joined
	freshUntil time.Duration     // by clock; claims are handed out before it only
	watched    map[backends.Identity]watch
	beat       time.Duration // when the last one that reached the database did, by clock; 0: none was
	trouble    error         // why the last one did not; nil: it did
	reader     reader
	waiting    []chan struct{} // closed after the next beat that succeeded or said "lost"
}

// watch is what was seen of a peer.
type watch struct {
	beats uint64
	since time.Duration // when beats was first seen, by clock
	ended bool
	lease time.Duration // the peer's
}

// run joins and beats until ctx is done. It does not leave: see leave.
func (k *keeper) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var failing bool
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-k.poke:
		}
		err := k.turn(ctx)
		if ctx.Err() != nil {
			return nil
		}
		k.noted(err)
		if err != nil {
			k.metrics().beatFailures.Inc()
		}
		if err != nil && !failing {
			k.log.Warn("the beat did not reach the database; nothing is handed out until it does", "error", err)
		} else if err == nil && failing {
			k.log.Info("the beat reaches the database again")
		}
		failing = err != nil
		next := k.times.lease().every()
		if failing {
			next = min(next/4, time.Second)
		}
		timer.Reset(next)
	}
}

// noted remembers how the last turn ended, for people.
func (k *keeper) noted(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble = err
}

// turn is one beat and what follows from it.
func (k *keeper) turn(ctx context.Context) error {
	id := k.current()
	kind := backends.HeartbeatRenew
	if id == 0 {
		kind = backends.HeartbeatJoin
		id = newIdentity()
	}
	asked, h, reads := k.clock(), k.times.lease(), k.says() // one for the whole turn: it may change meanwhile
	beatCtx, cancel := answerWithin(ctx, h.answer())
	defer cancel()
	pulse, err := k.backend.Heartbeat(beatCtx, backends.Heartbeat{Host: id, Kind: kind, Name: hostName(), Timeout: h.trusted(), DepthLeader: reads})
	if err != nil {
		return err
	}
	if !pulse.Alive {
		k.giveUp(id)
		return k.turn(ctx)
	}
	if !k.beaten(id, kind, asked+h.trusted()-h.margin(), reads, pulse.Peers) {
		return k.turn(ctx) // a claim found out meanwhile that id was given up
	}
	return k.reconcile(ctx, id)
}

func (k *keeper) beaten(id backends.Identity, kind backends.HeartbeatKind, freshUntil time.Duration, reads bool, peers []backends.Peer) bool {
	k.mu.Lock()
	if kind == backends.HeartbeatRenew && k.identity != id {
		k.mu.Unlock()
		return false
	}
	joined := k.identity == 0
	revived := joined || k.clock() >= k.freshUntil
	k.identity = id
	k.freshUntil, k.beat = freshUntil, k.clock()
	suspects := k.watch(peers, revived)
	if k.reader.take(id, reads, revived, peers, k.clock()) {
		k.beatNow()
	}
	for _, c := range k.waiting {
		close(c)
	}
	k.waiting = nil
	k.mu.Unlock()
	if joined {
		k.log.Info("joined the database", "host", fmt.Sprintf("%016x", uint64(id)))
	}
	if revived {
		k.revived()
	}
	if suspects {
		k.suspected()
	}
	return true
}

// watch remembers the peers' beats and reports whether one is suspect. k.mu is
// held. With anew it begins to watch them: this sidecar's own beats were late, so that
// what kept them (the database was away, or locked, this process was stopped, perhaps
// with a lock that all others waited for) may have kept theirs, and they come now.
func (k *keeper) watch(peers []backends.Peer, anew bool) (suspects bool) {
	now, observe := k.clock(), k.times.lease().observe()
	next := make(map[backends.Identity]watch, len(peers))
	for _, p := range peers {
		w, seen := k.watched[p.Host]
		if anew || !seen || w.beats != p.Heartbeats {
			w = watch{beats: p.Heartbeats, since: now}
		}
		w.ended, w.lease = p.Expired && !p.Dead, p.Timeout
		next[p.Host] = w
		suspects = suspects || p.Dead || w.ended && now-w.since >= observe
	}
	k.watched = next
	return suspects
}

// suspects lists the peers to give up.
func (k *keeper) suspects() []backends.Suspect {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, observe := k.clock(), k.times.lease().observe()
	var out []backends.Suspect
	for host, w := range k.watched {
		if w.ended && now-w.since >= observe {
			out = append(out, backends.Suspect{Host: host, Heartbeats: w.beats, Timeout: w.lease})
		}
	}
	return out
}

// peers is how many other sidecars of the database seem to live.
func (k *keeper) peers() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.watched {
		if !w.ended {
			n++
		}
	}
	return n
}

// giveUp drops an identity that others took for dead: its leases are theirs to
// give out again.
func (k *keeper) giveUp(id backends.Identity) {
	k.mu.Lock()
	if k.identity != id {
		k.mu.Unlock()
		return
	}
	k.identity = 0
	k.freshUntil = 0
	for _, c := range k.waiting {
		close(c)
	}
	k.waiting = nil
	k.mu.Unlock()
	k.metrics().given.Inc()
	k.abandoned()
	lost := k.ledger.dropAll()
	k.log.Warn("this sidecar was given up (its beat was late): its sessions' leases are lost, going on under a new identity",
		"host", fmt.Sprintf("%016x", uint64(id)), "sessions", len(lost))
	k.lost(lost)
}

// current is the identity claims are made under; 0 while there is none.
func (k *keeper) current() backends.Identity {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.identity
}

// fresh is the identity, while its beat is not late, else 0.
func (k *keeper) fresh() backends.Identity {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.clock() >= k.freshUntil {
		return 0
	}
	return k.identity
}

// confirm makes sure that id is alive, by a beat where the last one is late: a
// claim is handed out only then. It waits for that beat as long as ctx allows.
func (k *keeper) confirm(ctx context.Context, id backends.Identity) bool {
	if k.fresh() == id {
		return true
	}
	k.mu.Lock()
	c := make(chan struct{})
	k.waiting = append(k.waiting, c)
	k.mu.Unlock()
	k.beatNow()
	select {
	case <-c:
		return k.fresh() == id
	case <-ctx.Done():
		return false
	}
}

// beatNow asks for a beat without waiting for its time.
func (k *keeper) beatNow() {
	select {
	case k.poke <- struct{}{}:
	default:
	}
}

// leave is the last beat: the sessions' leases stay valid for the grace.
func (k *keeper) leave(ctx context.Context) error {
	k.mu.Lock()
	id := k.identity
	k.identity = 0
	k.freshUntil = 0
	k.mu.Unlock()
	if id == 0 {
		return nil
	}
	_, err := k.backend.Heartbeat(ctx, backends.Heartbeat{Host: id, Kind: backends.HeartbeatLeave, Name: hostName(), Timeout: k.times.restart()})
	return err
}

func newIdentity() backends.Identity {
	for {
		var raw [8]byte
		rand.Read(raw[:]) // never fails (crypto/rand)
		if id := binary.BigEndian.Uint64(raw[:]); id != 0 {
			return backends.Identity(id)
		}
	}
}

func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		name = "unknown-host"
	}
	return fmt.Sprintf("%s:%d", name, os.Getpid())
}
