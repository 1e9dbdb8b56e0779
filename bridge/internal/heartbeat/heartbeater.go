package heartbeat

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
)

// Heartbeater keeps this sidecar alive in one database. It joins under a new identity, sends heartbeats, compares the
// claimed rows with the lease table, and watches the heartbeats of the other sidecars.
//
// The times follow from the sidecar timeout H of the sidecar that they are about. A dead sidecar's leases are valid for H
// after its last heartbeat, and its jobs are free at most H/3 later:
//
//   - A sidecar sends a heartbeat every H/6. Each is valid for H from when it reached the database.
//   - A peer is suspect if its heartbeat has expired by the database's clock, and did not change for H as seen here. If
//     it is new here, 3/10 H of that count as over.
//   - A sidecar trusts its own heartbeat, and hands out jobs, for 13/20 H.
//
// So a sidecar that dies right after a heartbeat is declared dead after H plus one heartbeat of the others. As long as
// a sidecar trusts its own heartbeat, no peer suspects it, wherever the database's clock is set.
//
// In a large fleet only backends.Watchers sidecars watch all others. If they all die with another sidecar, that is at most H/6 after
// its last heartbeat. Theirs are late H/4 later (backends.InTime). The others find out in their next heartbeat, after H/6
// more, and watch for 7/10 H. The sum is 77/60 H, which is below 80/60.
//
// Sidecars can have different timeouts. A sidecar that watches sends heartbeats as often as the peer with the
// shortest one, so that it finds out in time.
type Heartbeater struct {
	Config
	wake        chan struct{} // capacity 1: one pending request is enough
	fleetWanted atomic.Bool   // the next heartbeat returns all peers for Fleet

	mu            sync.Mutex
	identity      backends.Identity // 0: not joined
	freshUntil    time.Duration     // by clock; claims are handed out only before it
	peers         map[backends.Identity]peerState
	watched       bool            // other sidecars watch all (backends.HeartbeatResult.Watched)
	allPeersAt    time.Duration   // time of the last heartbeat that returned all peers, by clock; 0: none
	allPeers      int             // how many it returned
	fleet         []backends.Peer // those, and this sidecar
	fleetAt       time.Duration   // when they were read, by clock
	lastSuccess   time.Duration   // time of the last successful heartbeat, by clock; 0: none
	lastErr       error           // error of the last heartbeat; nil: it succeeded
	joinedAt      time.Duration   // when it got the identity, by clock
	rejoinWait    time.Duration   // see delayRejoin
	joinNotBefore time.Duration   // by clock
	depthLeader   depthLeader
	confirmations []chan struct{} // closed after the next heartbeat that succeeds or reports the identity as lost
}

// Config configures a Heartbeater. Its functions must not wait for the Heartbeater.
type Config struct {
	Backend *backendref.Ref
	Times   *Times
	Leases  *lease.Table
	Metrics func() *metrics.Database
	Log     *slog.Logger
	Version func() string        // of the program
	Clock   func() time.Duration // never jumps, and goes on while the machine is suspended

	// Lost receives the claims that the sessions no longer have.
	Lost func(lease.Lost)
	// IdentityDropped is called when an identity is declared dead, before its leases are dropped.
	IdentityDropped func()
	// Release releases claims that this sidecar has no record of, without using up an attempt. It returns how many: it leaves
	// out those whose release the database has refused.
	Release func(owner backends.Identity, jobs []backends.ClaimedJob) int
	// Reconciled is called after each comparison of the claims; nil: nothing is.
	Reconciled func()
	// Suspected wakes the maintainer.
	Suspected func()
	// Revived wakes the committer: claims are possible (again).
	Revived func()
}

// New returns a Heartbeater that has not joined.
func New(c Config) *Heartbeater {
	return &Heartbeater{Config: c, wake: make(chan struct{}, 1), peers: make(map[backends.Identity]peerState)}
}

// Run joins and sends heartbeats until ctx is done. It does not leave: see Leave.
func (k *Heartbeater) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var failing bool
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-k.wake:
		}
		err := k.Send(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errRejoinsLater) {
			k.setLastErr(err)
			timer.Reset(k.untilJoin())
			continue
		}
		k.setLastErr(err)
		if err != nil {
			k.Metrics().HeartbeatFailures.Inc()
		}
		if err != nil && !failing {
			k.Log.Warn("heartbeat failed", "event", "heartbeat_failed", "error", err)
		} else if err == nil && failing {
			k.Log.Info("heartbeats succeed again", "event", "heartbeat_recovered")
		}
		failing = err != nil
		next := k.pause()
		if failing {
			next = min(next/4, time.Second)
		}
		timer.Reset(next)
	}
}

// setLastErr keeps the error of the last heartbeat for status.
func (k *Heartbeater) setLastErr(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lastErr = err
}

// Send sends one heartbeat. A Heartbeater without an identity joins the database with it, under a new identity. After
// a success, Send compares the claimed rows with the lease table. It returns the error of the database. If other
// sidecars have declared this one dead, it drops the identity and joins again.
func (k *Heartbeater) Send(ctx context.Context) error {
	id := k.Identity()
	kind := backends.HeartbeatRenew
	if id == 0 {
		if k.untilJoin() > 0 {
			return errRejoinsLater
		}
		kind = backends.HeartbeatJoin
		id = newIdentity()
	}
	sent, h := k.Clock(), k.Times.sidecarTimeout() // read once, because they can change during this call
	leads, all := k.announcesLeadership()
	b := k.heartbeat(id, kind, time.Duration(h))
	b.DepthLeader, b.AllPeers = leads, all || k.fleetWanted.Swap(false)
	queryCtx, cancel := backendref.WithTimeout(ctx, h.answer())
	defer cancel()
	pulse, err := k.Backend.Heartbeat(queryCtx, b)
	if err != nil {
		return err
	}
	if !pulse.Alive {
		k.DropIdentity(id)
		return k.Send(ctx)
	}
	if !k.recordHeartbeat(b, sent+h.trusted(), pulse) {
		return k.Send(ctx) // since then a claim found that id was declared dead
	}
	return k.reconcile(ctx, id)
}

// errRejoinsLater is returned by Send while a sidecar that was evicted soon after it joined waits before it joins again.
var errRejoinsLater = errors.New("this sidecar was evicted soon after it joined the database, and waits before it joins again")

// firstRejoinWait is the wait before the second of several joins in a row. It doubles with each, up to the time between heartbeats.
const firstRejoinWait = 100 * time.Millisecond

// delayRejoin is called when an identity is dropped. If that was its first heartbeat's time, something evicts each new identity:
// another program empties qsidecar_sidecars, for example. Then the sidecar must not join in a loop. The caller holds k.mu.
func (k *Heartbeater) delayRejoin() {
	every := k.Times.sidecarTimeout().every()
	if k.Clock()-k.joinedAt > every {
		k.rejoinWait = 0
	} else {
		k.rejoinWait = min(max(2*k.rejoinWait, firstRejoinWait), every)
	}
	k.joinNotBefore = k.Clock() + k.rejoinWait
}

// untilJoin returns how long a sidecar without an identity must wait before it joins.
func (k *Heartbeater) untilJoin() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return max(k.joinNotBefore-k.Clock(), 0)
}

// recordHeartbeat records a successful heartbeat, which is trusted until freshUntil. It returns false if the identity was
// dropped since it was sent.
func (k *Heartbeater) recordHeartbeat(b backends.Heartbeat, freshUntil time.Duration, pulse backends.HeartbeatResult) bool {
	id := b.Host
	k.mu.Lock()
	if b.Kind == backends.HeartbeatRenew && k.identity != id {
		k.mu.Unlock()
		return false
	}
	joined := k.identity == 0
	if joined {
		k.joinedAt = k.Clock()
	}
	revived := joined || k.Clock() >= k.freshUntil
	k.identity = id
	k.freshUntil, k.lastSuccess = freshUntil, k.Clock()
	suspected := k.watchPeers(pulse.Peers, revived)
	if k.watched = pulse.Watched; !k.watched || b.AllPeers {
		k.allPeersAt, k.allPeers = k.Clock(), len(pulse.Peers)
		k.fleet, k.fleetAt = slices.Concat(pulse.Peers, []backends.Peer{ownRow(b)}), k.Clock()
		if k.depthLeader.update(id, b.DepthLeader, revived, pulse.Peers, k.Clock()) {
			k.SendNow()
		}
	}
	for _, c := range k.confirmations {
		close(c)
	}
	k.confirmations = nil
	k.mu.Unlock()
	if joined {
		k.Log.Info("joined the database", "event", "database_joined", "sidecar", fmt.Sprintf("%016x", uint64(id)))
	}
	if revived {
		k.Revived()
	}
	if suspected {
		k.Suspected()
	}
	return true
}

// DropIdentity drops an identity that other sidecars declared dead. They can hand out its jobs again.
func (k *Heartbeater) DropIdentity(id backends.Identity) {
	k.mu.Lock()
	if k.identity != id {
		k.mu.Unlock()
		return
	}
	k.identity = 0
	k.freshUntil = 0
	k.delayRejoin()
	for _, c := range k.confirmations {
		close(c)
	}
	k.confirmations = nil
	k.mu.Unlock()
	k.Metrics().Evictions.Inc()
	k.IdentityDropped()
	lost := k.Leases.DropAll()
	k.Log.Warn("evicted by another sidecar", "event", "evicted", "sidecar", fmt.Sprintf("%016x", uint64(id)), "sessions", len(lost))
	k.Lost(lost)
}

// Identity returns the identity for claims; 0 if there is none.
func (k *Heartbeater) Identity() backends.Identity {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.identity
}

// Fresh returns the identity if its heartbeat is not late, else 0.
func (k *Heartbeater) Fresh() backends.Identity {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Clock() >= k.freshUntil {
		return 0
	}
	return k.identity
}

// Confirm reports whether id is alive. If the last heartbeat is late, it sends one and waits for it as long as ctx
// allows.
func (k *Heartbeater) Confirm(ctx context.Context, id backends.Identity) bool {
	if k.Fresh() == id {
		return true
	}
	k.mu.Lock()
	c := make(chan struct{})
	k.confirmations = append(k.confirmations, c)
	k.mu.Unlock()
	k.SendNow()
	select {
	case <-c:
		return k.Fresh() == id
	case <-ctx.Done():
		return false
	}
}

// SendNow makes Run send a heartbeat immediately. It does not wait for it.
func (k *Heartbeater) SendNow() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Leave sends the last heartbeat. The sessions' leases stay valid for the restart grace.
func (k *Heartbeater) Leave(ctx context.Context) error {
	k.mu.Lock()
	id := k.identity
	k.identity = 0
	k.freshUntil = 0
	k.mu.Unlock()
	if id == 0 {
		return nil
	}
	_, err := k.Backend.Heartbeat(ctx, k.heartbeat(id, backends.HeartbeatLeave, k.Times.RestartGrace()))
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
