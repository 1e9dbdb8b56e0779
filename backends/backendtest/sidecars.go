package backendtest

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// peer returns another sidecar as a heartbeat of me lists it, or nil if it is not listed.
func (k *kit) peer(sidecar backends.Identity) *backends.Peer {
	k.Helper()
	p := k.heartbeat(k, me, backends.HeartbeatRenew)
	if !p.Alive {
		k.Fatal("the sidecar that lists its peers was evicted")
	}
	at := slices.IndexFunc(p.Peers, func(p backends.Peer) bool { return p.Sidecar == sidecar })
	if at < 0 {
		return nil
	}
	return &p.Peers[at]
}

// claimOneFor claims the only ready job for a sidecar.
func (k *kit) claimOneFor(sidecar backends.Identity, lease time.Duration) backends.Job {
	k.Helper()
	return k.onlyJob(k.claimBatch(sidecar, 1, lease, policy("q")))
}

func (k *kit) evict(p *backends.Peer) backends.MaintenanceResult {
	k.Helper()
	return k.maintain(backends.Maintenance{Suspects: []backends.Suspect{{Sidecar: p.Sidecar, Heartbeats: p.Heartbeats, Timeout: p.Timeout}}})
}

// wantEvicted checks that claims of a sidecar are refused.
func (k *kit) wantEvicted(sidecar backends.Identity) {
	k.Helper()
	b := k.claimBatch(sidecar, 1, 0, policy("q"))
	b.Writes = []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: []byte("with a refused claim")}}}}
	before := k.stats()
	if _, err := k.Commit(k.Context(), b); !errors.Is(err, backends.ErrEvicted) {
		k.Fatalf("a claim of the evicted sidecar %d: %v, want ErrEvicted", sidecar, err)
	}
	if after := k.stats(); after.Ready != before.Ready {
		k.Fatalf("the refused batch left %d ready, there were %d", after.Ready, before.Ready)
	}
}

var sidecarTests = map[string]func(*kit){
	"JobsOfADeadSidecarAreClaimable": func(k *kit) {
		second := k.OpenAnother()
		k.join(second, other)
		id := k.enqueuePayloads("a")[0]
		j := k.claimOneFor(other, 0)
		k.AdvanceClock(sidecarTimeout - time.Second)
		if p := k.peer(other); p == nil || p.Expired || p.Dead {
			k.Fatalf("a live peer is listed as %+v", p)
		}
		k.AdvanceClock(2 * time.Second)
		p := k.peer(other)
		if p == nil || !p.Expired || p.Dead {
			k.Fatalf("an expired peer is listed as %+v", p)
		}
		k.wantReaped(0, "") // an expired sidecar is not dead before it is evicted
		if r := k.evict(p); r.Reaped[backends.CauseSidecarLost] != 1 || !slices.Equal(r.MadeReady, []string{"q"}) {
			k.Fatalf("%+v, want one job reaped and q made ready", r)
		}
		k.wantFailures(id, backends.Failure{Attempt: 1, Cause: backends.CauseSidecarLost})
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 1)
		if r := k.heartbeat(second, other, backends.HeartbeatRenew); r.Alive {
			k.Error("the heartbeat of a dead sidecar is answered as alive")
		}
		k.maintain(backends.Maintenance{})
		if p := k.peer(other); p != nil {
			k.Errorf("all its jobs are reaped, but it is still listed: %+v", p)
		}
		k.wantEvicted(other)
	},
	"HeartbeatAfterASuspicionPreventsEviction": func(k *kit) {
		k.join(k, other)
		k.enqueuePayloads("a")
		j := k.claimOneFor(other, 0)
		k.AdvanceClock(sidecarTimeout + time.Second)
		p := k.peer(other)
		k.heartbeat(k, other, backends.HeartbeatRenew)
		k.AdvanceClock(sidecarTimeout + time.Second) // expired again, but it sent a heartbeat in between
		if r := k.evict(p); len(r.Reaped) != 0 {
			k.Fatalf("reaped %v", r.Reaped)
		}
		if now := k.peer(other); now == nil || now.Dead || now.Heartbeats == p.Heartbeats {
			k.Fatalf("it is listed as %+v", now)
		}
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0)
	},
	"UnexpiredSuspectIsNotEvicted": func(k *kit) {
		k.join(k, other)
		k.enqueuePayloads("a")
		k.claimOneFor(other, 0)
		p := k.peer(other)
		if r := k.evict(p); len(r.Reaped) != 0 || k.peer(other).Dead {
			k.Fatalf("evicted before it expired: %+v", r)
		}
		// A clock that jumps forward and back evicts no sidecar.
		k.AdvanceClock(time.Hour)
		if !k.peer(other).Expired {
			k.Error("not expired after the jump")
		}
		k.AdvanceClock(-time.Hour)
		if r := k.evict(p); len(r.Reaped) != 0 {
			k.Fatalf("evicted before it expired: %+v", r)
		}
	},
	"ClockSetBack": func(k *kit) {
		// A clock set back does not delay the eviction of a sidecar that stopped before. A sidecar
		// that renews by the new clock stays alive. A sidecar that left keeps its grace period.
		const living, left = other + 1, other + 2
		for _, sidecar := range []backends.Identity{other, living, left} {
			k.join(k, sidecar)
		}
		k.enqueuePayloads("a")
		k.claimOneFor(other, 0)
		k.heartbeat(k, left, backends.HeartbeatLeave)
		for _, sidecar := range []backends.Identity{other, living, left} {
			if p := k.peer(sidecar); p == nil || p.Expired {
				k.Fatalf("sidecar %d before anything happened: %+v", sidecar, p)
			}
		}
		k.AdvanceClock(-2 * sidecarTimeout)
		k.heartbeat(k, living, backends.HeartbeatRenew)
		for _, sidecar := range []backends.Identity{left, living} {
			p := k.peer(sidecar)
			if p == nil || p.Expired {
				k.Fatalf("sidecar %d after the jump: %+v", sidecar, p)
			}
			if k.evict(p); k.peer(sidecar) == nil || k.peer(sidecar).Dead {
				k.Fatalf("sidecar %d was evicted", sidecar)
			}
		}
		p := k.peer(other)
		if p == nil || !p.Expired {
			k.Fatalf("the dead one after the jump: %+v", p)
		}
		if r := k.evict(p); r.Reaped[backends.CauseSidecarLost] != 1 {
			k.Fatalf("%+v, want its job reaped", r)
		}
	},
	"LeasesHoldUntilReaped": func(k *kit) {
		k.join(k, other)
		k.enqueuePayloads(numbered(3)...)
		jobs := k.commit(k.claimBatch(other, 3, 0, policy("q"))).Claims[0].Jobs
		k.AdvanceClock(sidecarTimeout + time.Second)
		p := k.peer(other)
		k.maintain(backends.Maintenance{Limit: 1, Suspects: []backends.Suspect{{Sidecar: other, Heartbeats: p.Heartbeats, Timeout: p.Timeout}}})
		k.wantEvicted(other)
		if p := k.peer(other); p == nil || !p.Dead {
			k.Errorf("evicted but not yet reaped, it is listed as %+v", p)
		}
		if r := k.write(backends.Ack{Leases: leasesOf(jobs...)}); len(r.Lost) != 1 {
			k.Errorf("%d leases lost, want only the reaped one", len(r.Lost))
		}
	},
	"TimedLeaseOutlivesItsSidecar": func(k *kit) {
		k.join(k, other)
		k.enqueuePayloads("a")
		j := k.claimOneFor(other, time.Hour)
		k.AdvanceClock(sidecarTimeout + time.Second)
		if r := k.evict(k.peer(other)); len(r.Reaped) != 0 {
			k.Fatalf("reaped %v", r.Reaped)
		}
		for range 3 {
			if r := k.maintain(backends.Maintenance{Limit: 1}); len(r.Reaped) != 0 {
				k.Fatalf("reaped %v", r.Reaped)
			}
		}
		if p := k.peer(other); p != nil {
			k.Errorf("a dead sidecar with a timed lease is kept: %+v", p)
		}
		k.writeLosing(backends.Extend{Leases: leasesOf(j)}, 0)
		k.AdvanceClock(time.Hour)
		k.wantReaped(0, backends.CauseLeaseEnded)
	},
	"JobsOfAnUnknownOwnerAreClaimable": func(k *kit) { // for example after a failover that lost its join
		k.enqueuePayloads("a")
		k.writeLosing(backends.Extend{Leases: leasesOf(k.claimOne()), Bind: 99}, 0)
		k.wantReaped(0, backends.CauseSidecarLost)
	},
	"OrderlyExitKeepsLeases": func(k *kit) {
		k.join(k, other)
		k.enqueuePayloads("a", "b")
		jobs := k.commit(k.claimBatch(other, 2, 0, policy("q"))).Claims[0].Jobs
		k.AdvanceClock(20 * time.Second)
		if p := k.heartbeat(k, other, backends.HeartbeatLeave); !p.Alive {
			k.Error("the leave heartbeat is answered as evicted")
		}
		k.wantEvicted(other)
		k.AdvanceClock(20 * time.Second) // within its timeout since the leave
		p := k.peer(other)
		if p == nil || p.Expired {
			k.Fatalf("before its timeout it is listed as %+v", p)
		}
		const next = backends.Identity(12)
		k.join(k, next)
		k.writeLosing(backends.Ack{Leases: leasesOf(jobs[0])}, 0) // the old token is valid although its sidecar has left
		k.writeLosing(backends.Extend{Leases: leasesOf(jobs[1]), Bind: next}, 0)
		k.AdvanceClock(sidecarTimeout)
		k.heartbeat(k, next, backends.HeartbeatRenew)
		k.evict(k.peer(other))
		k.writeLosing(backends.Ack{Leases: leasesOf(jobs[1])}, 0)
		if r := k.heartbeat(k, other, backends.HeartbeatRenew); r.Alive {
			k.Error("it left and was evicted, but its heartbeat is answered as alive")
		}
	},
	"SidecarThatLeftIsEvictedAfterItsTimeout": func(k *kit) {
		k.join(k, other)
		k.enqueuePayloads("a")
		k.claimOneFor(other, 0)
		k.heartbeat(k, other, backends.HeartbeatLeave)
		p := k.peer(other)
		k.AdvanceClock(sidecarTimeout + time.Second)
		if r := k.evict(p); r.Reaped[backends.CauseSidecarLost] != 1 {
			k.Fatalf("%+v, want its job reaped", r)
		}
	},
	"ClaimNeedsAJoin": func(k *kit) {
		k.wantEvicted(99)
		if p := k.heartbeat(k, 99, backends.HeartbeatRenew); p.Alive {
			k.Error("a sidecar without a row is answered as alive")
		}
	},
	"JoinIsIdempotent": func(k *kit) { // the first answer was lost
		for range 2 {
			if p := k.join(k, other); !p.Alive || len(p.Peers) != 1 || p.Peers[0].Sidecar != me {
				k.Fatalf("%+v", p)
			}
		}
		before := k.peer(other)
		k.heartbeat(k, other, backends.HeartbeatRenew)
		if after := k.peer(other); after.Heartbeats == before.Heartbeats {
			k.Error("a heartbeat did not raise the counter")
		}
	},
	"PeersSeeTheDepthLeader": func(k *kit) {
		second := k.OpenAnother()
		version, leases := strings.Repeat("1", backends.MaxVersion), int64(0)
		heartbeat := func(kind backends.HeartbeatKind, leader bool) {
			k.Helper()
			hb := backends.Heartbeat{Sidecar: other, Kind: kind, Name: "reader", Version: version, Leases: leases, Timeout: sidecarTimeout, DepthLeader: leader}
			version, leases = version[1:], leases+1
			p, err := second.Heartbeat(k.Context(), hb)
			if err != nil || !p.Alive {
				k.Fatalf("heartbeat: %+v, %v", p, err)
			}
			if got := k.peer(other); got == nil || got.DepthLeader != leader || got.Name != hb.Name || got.Version != hb.Version || got.Leases != hb.Leases || got.Left <= 0 || got.Left > sidecarTimeout+time.Second || got.HasLeft != (kind == backends.HeartbeatLeave) || got.Timeout.Truncate(time.Second) != sidecarTimeout {
				k.Fatalf("a heartbeat of kind %d with DepthLeader %v: the peer is listed as %+v", kind, leader, got)
			}
		}
		heartbeat(backends.HeartbeatJoin, false)
		heartbeat(backends.HeartbeatRenew, true)
		heartbeat(backends.HeartbeatRenew, true)
		heartbeat(backends.HeartbeatRenew, false)
		heartbeat(backends.HeartbeatJoin, true)
		heartbeat(backends.HeartbeatLeave, false)
	},
}
