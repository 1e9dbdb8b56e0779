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
	dropped       chan struct{}     // closed when the leases of the last dropped identity are dropped; nil: none was
	lastSent      time.Duration     // by clock; of the last heartbeat that succeeded
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
	comparison    *comparison     // that goes on after the next heartbeat; nil: a new one begins
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
	// Cancelled finds out which claims of the identity an operator cancelled, and reports them. It is called if claims are missing.
	Cancelled func(ctx context.Context, id backends.Identity)
	// IdentityDropped is called when an identity is declared dead, before its leases are dropped.
	IdentityDropped func()
	// Release releases claims that this sidecar has no record of, without using up an attempt. It returns how many: it leaves
	// out those whose release the database has refused.
	Release func(owner backends.Identity, jobs []backends.ClaimedJob) int
	// Reconciled is called after each comparison of the claims; nil: nothing is.
	Reconciled func()
	// Suspected wakes the maintainer.
	Suspected func()
	// Revived wakes the loop that commits claims: they are possible (again).
	Revived func()
}

// New returns a Heartbeater that has not joined.
func New(c Config) *Heartbeater {
	return &Heartbeater{Config: c, wake: make(chan struct{}, 1), peers: make(map[backends.Identity]peerState)}
}

// Run joins and sends heartbeats until ctx is done. It does not leave: see Leave.
func (h *Heartbeater) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var failing bool
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-h.wake:
		}
		err := h.Send(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errRejoinsLater) {
			h.setLastErr(err)
			timer.Reset(h.untilJoin())
			continue
		}
		h.setLastErr(err)
		if err != nil {
			h.Metrics().HeartbeatFailures.Inc()
		}
		if err != nil && !failing {
			h.Log.Warn("heartbeat failed", "event", "heartbeat_failed", "error", err)
		} else if err == nil && failing {
			h.Log.Info("heartbeats succeed again", "event", "heartbeat_recovered")
		}
		failing = err != nil
		next := h.pause()
		if failing {
			next = min(next/4, time.Second)
		}
		timer.Reset(next)
	}
}

// setLastErr keeps the error of the last heartbeat for status.
func (h *Heartbeater) setLastErr(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastErr = err
}

// Send sends one heartbeat. A Heartbeater without an identity joins the database with it, under a new identity. After
// a success, Send compares the claimed rows with the lease table. It returns the error of the database. If other
// sidecars have declared this one dead, it drops the identity and joins again.
func (h *Heartbeater) Send(ctx context.Context) error {
	id := h.Identity()
	kind := backends.HeartbeatRenew
	if id == 0 {
		if err := h.awaitDropped(ctx); err != nil {
			return err
		}
		if h.untilJoin() > 0 {
			return errRejoinsLater
		}
		kind = backends.HeartbeatJoin
		id = newIdentity()
	}
	sent, limit := h.Clock(), h.Times.sidecarTimeout() // read once, because they can change during this call
	leads, all := h.announcesLeadership()
	b := h.heartbeat(id, kind, time.Duration(limit))
	b.DepthLeader, b.AllPeers = leads, all || h.fleetWanted.Swap(false)
	queryCtx, cancel := backendref.WithTimeout(ctx, limit.answer())
	defer cancel()
	pulse, err := h.Backend.Heartbeat(queryCtx, b)
	if err != nil {
		return err
	}
	if !pulse.Alive {
		h.DropIdentity(id)
		return h.Send(ctx)
	}
	if !h.recordHeartbeat(b, sent, pulse) {
		return h.Send(ctx) // since then a claim found that id was declared dead
	}
	return h.reconcile(ctx, id)
}

// errRejoinsLater is returned by Send while a sidecar that was evicted soon after it joined waits before it joins again.
var errRejoinsLater = errors.New("this sidecar was evicted soon after it joined the database, and waits before it joins again")

// awaitDropped waits until the leases of the last dropped identity are dropped. The end of an identity drops all leases, so those of
// the next one must come later.
func (h *Heartbeater) awaitDropped(ctx context.Context) error {
	h.mu.Lock()
	dropped := h.dropped
	h.mu.Unlock()
	if dropped == nil {
		return nil
	}
	select {
	case <-dropped:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// firstRejoinWait is the wait before the second of several joins in a row. It doubles with each, up to the time between heartbeats.
const firstRejoinWait = 100 * time.Millisecond

// delayRejoin is called when an identity is dropped. If that was its first heartbeat's time, something evicts each new identity:
// another program empties qsidecar_sidecars, for example. Then the sidecar must not join in a loop. The caller holds h.mu.
func (h *Heartbeater) delayRejoin() {
	every := h.Times.sidecarTimeout().every()
	if h.Clock()-h.joinedAt > every {
		h.rejoinWait = 0
	} else {
		h.rejoinWait = min(max(2*h.rejoinWait, firstRejoinWait), every)
	}
	h.joinNotBefore = h.Clock() + h.rejoinWait
}

// untilJoin returns how long a sidecar without an identity must wait before it joins.
func (h *Heartbeater) untilJoin() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(h.joinNotBefore-h.Clock(), 0)
}

// recordHeartbeat records a successful heartbeat and when it was sent. It returns false if the identity was dropped since then.
func (h *Heartbeater) recordHeartbeat(b backends.Heartbeat, sent time.Duration, pulse backends.HeartbeatResult) bool {
	id := b.Sidecar
	h.mu.Lock()
	if b.Kind == backends.HeartbeatRenew && h.identity != id {
		h.mu.Unlock()
		return false
	}
	joined := h.identity == 0
	if joined {
		h.joinedAt = h.Clock()
	}
	revived := joined || h.Clock() >= h.freshUntil
	h.identity = id
	suspected := h.watchPeers(pulse.Peers, joined)
	h.lastSent, h.freshUntil, h.lastSuccess = sent, sent+timeout(b.Timeout).trusted(), h.Clock()
	if h.watched = pulse.Watched; !h.watched || b.AllPeers {
		h.allPeersAt, h.allPeers = h.Clock(), len(pulse.Peers)
		h.fleet, h.fleetAt = slices.Concat(pulse.Peers, []backends.Peer{ownRow(b)}), h.Clock()
		if h.depthLeader.update(id, b.DepthLeader, revived, pulse.Peers, h.Clock()) {
			h.SendNow()
		}
	}
	for _, c := range h.confirmations {
		close(c)
	}
	h.confirmations = nil
	h.mu.Unlock()
	if joined {
		h.Log.Info("joined the database", "event", "database_joined", "sidecar", fmt.Sprintf("%016x", uint64(id)))
	}
	if revived {
		h.Revived()
	}
	if suspected {
		h.Suspected()
	}
	return true
}

// DropIdentity drops an identity that other sidecars declared dead, and its leases. They can hand out its jobs again. The next identity
// joins after that.
func (h *Heartbeater) DropIdentity(id backends.Identity) {
	h.mu.Lock()
	if h.identity != id {
		h.mu.Unlock()
		return
	}
	h.identity = 0
	h.freshUntil = 0
	dropped := make(chan struct{})
	h.dropped = dropped
	h.delayRejoin()
	for _, c := range h.confirmations {
		close(c)
	}
	h.confirmations = nil
	h.mu.Unlock()
	h.Metrics().Evictions.Inc()
	h.IdentityDropped()
	lost := h.Leases.DropAll()
	close(dropped)
	h.Log.Warn("evicted by another sidecar", "event", "evicted", "sidecar", fmt.Sprintf("%016x", uint64(id)), "sessions", len(lost))
	h.Lost(lost)
}

// Identity returns the identity for claims; 0 if there is none.
func (h *Heartbeater) Identity() backends.Identity {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.identity
}

// Fresh returns the identity if its heartbeat is not late, else 0.
func (h *Heartbeater) Fresh() backends.Identity {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Clock() >= h.freshUntil {
		return 0
	}
	return h.identity
}

// Confirm reports whether id is alive. If the last heartbeat is late, it sends one and waits for it as long as ctx
// allows.
func (h *Heartbeater) Confirm(ctx context.Context, id backends.Identity) bool {
	if h.Fresh() == id {
		return true
	}
	h.mu.Lock()
	c := make(chan struct{})
	h.confirmations = append(h.confirmations, c)
	h.mu.Unlock()
	h.SendNow()
	select {
	case <-c:
		return h.Fresh() == id
	case <-ctx.Done():
		return false
	}
}

// SendNow makes Run send a heartbeat immediately. It does not wait for it.
func (h *Heartbeater) SendNow() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// LeasesEnded is called after this sidecar ended leases of jobs of the queue, by maintenance or a command. If sessions hold some of that
// queue, it makes Run send a heartbeat immediately, which finds out whose they were.
func (h *Heartbeater) LeasesEnded(queue string) {
	if h.Leases.SessionsHold(queue) {
		h.SendNow()
	}
}

// Leave sends the last heartbeat. The sessions' leases stay valid for the restart grace.
func (h *Heartbeater) Leave(ctx context.Context) error {
	h.mu.Lock()
	id := h.identity
	h.identity = 0
	h.freshUntil = 0
	h.mu.Unlock()
	if id == 0 {
		return nil
	}
	_, err := h.Backend.Heartbeat(ctx, h.heartbeat(id, backends.HeartbeatLeave, h.Times.RestartGrace()))
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

// Reachable reports whether the last heartbeat succeeded and is not late.
func (h *Heartbeater) Reachable() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastErr == nil && h.Clock() < h.freshUntil
}

// Age returns the time since the last successful heartbeat; negative: there was none.
func (h *Heartbeater) Age() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lastSuccess == 0 {
		return -1
	}
	return h.Clock() - h.lastSuccess
}

// Err returns the error of the last heartbeat, or nil if it succeeded.
func (h *Heartbeater) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastErr
}

// Locker is the lock of the heartbeater, for the check of the locks.
func (h *Heartbeater) Locker() sync.Locker { return &h.mu }
