package backendtest

import (
	"errors"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// peer is the other sidecar as a beat of mine shows it; nil: it is gone.
func (k *kit) peer(host backends.Identity) *backends.Peer {
	k.Helper()
	p := k.beat(k, me, backends.HeartbeatRenew)
	if !p.Alive {
		k.Fatal("the looking sidecar was given up itself")
	}
	at := slices.IndexFunc(p.Peers, func(p backends.Peer) bool { return p.Host == host })
	if at < 0 {
		return nil
	}
	return &p.Peers[at]
}

// takes has the other sidecar claim the only ready job.
func (k *kit) takes(host backends.Identity, lease time.Duration) backends.Job {
	k.Helper()
	jobs := k.commit(k.claims(host, 1, lease, policy("q"))).Claims[0].Jobs
	if len(jobs) != 1 {
		k.Fatalf("given %d jobs, want 1", len(jobs))
	}
	return jobs[0]
}

func (k *kit) suspect(p *backends.Peer) backends.MaintenanceResult {
	k.Helper()
	return k.sweep(backends.Maintenance{Suspects: []backends.Suspect{{Host: p.Host, Heartbeats: p.Heartbeats, Timeout: p.Timeout}}})
}

// hostLost checks that a host may not claim.
func (k *kit) hostLost(host backends.Identity) {
	k.Helper()
	b := k.claims(host, 1, 0, policy("q"))
	b.Writes = []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: []byte("with a refused claim")}}}}
	before := k.stats()
	if _, err := k.Commit(k.Context(), b); !errors.Is(err, backends.ErrEvicted) {
		k.Fatalf("a claim of the lost host %d: %v, want ErrHostLost", host, err)
	}
	if after := k.stats(); after.Ready != before.Ready {
		k.Fatalf("the refused batch left %d ready, there were %d", after.Ready, before.Ready)
	}
}

var hosts = map[string]func(*kit){
	"ADeadSidecarsJobsAreFree": func(k *kit) {
		second := k.Again()
		k.join(second, other)
		id := k.put("a")[0]
		j := k.takes(other, 0)
		k.Shift(hostLease - time.Second)
		if p := k.peer(other); p == nil || p.Expired || p.Dead {
			k.Fatalf("a living peer looks like %+v", p)
		}
		k.Shift(2 * time.Second)
		p := k.peer(other)
		if p == nil || !p.Expired || p.Dead {
			k.Fatalf("an expired peer looks like %+v", p)
		}
		k.reaped(0, "") // expired alone is not given up
		if r := k.suspect(p); r.Reaped[backends.CauseSidecarLost] != 1 || !slices.Equal(r.MadeReady, []string{"q"}) {
			k.Fatalf("%+v, want one reaped and q freed", r)
		}
		k.failures(id, backends.Failure{Attempt: 1, Cause: backends.CauseSidecarLost})
		k.settle(backends.Ack{Leases: each(j)}, 1)
		if pulse := k.beat(second, other, backends.HeartbeatRenew); pulse.Alive {
			k.Error("the dead one is told that it lives")
		}
		k.sweep(backends.Maintenance{})
		if p := k.peer(other); p != nil {
			k.Errorf("it was reaped to the end and is still shown: %+v", p)
		}
		k.hostLost(other)
	},
	"AMovedCounterSaves": func(k *kit) {
		k.join(k, other)
		k.put("a")
		j := k.takes(other, 0)
		k.Shift(hostLease + time.Second)
		p := k.peer(other)
		k.beat(k, other, backends.HeartbeatRenew)
		k.Shift(hostLease + time.Second) // expired again, but it had moved
		if r := k.suspect(p); len(r.Reaped) != 0 {
			k.Fatalf("reaped %v", r.Reaped)
		}
		if now := k.peer(other); now == nil || now.Dead || now.Heartbeats == p.Heartbeats {
			k.Fatalf("it looks like %+v", now)
		}
		k.settle(backends.Ack{Leases: each(j)}, 0)
	},
	"ASuspectThatIsNotExpired": func(k *kit) {
		k.join(k, other)
		k.put("a")
		k.takes(other, 0)
		p := k.peer(other)
		if r := k.suspect(p); len(r.Reaped) != 0 || k.peer(other).Dead {
			k.Fatalf("given up before its end: %+v", r)
		}
		// A clock that jumps ahead and back expires nobody for good.
		k.Shift(time.Hour)
		if !k.peer(other).Expired {
			k.Error("not expired after the jump")
		}
		k.Shift(-time.Hour)
		if r := k.suspect(p); len(r.Reaped) != 0 {
			k.Fatalf("given up before its end: %+v", r)
		}
	},
	"AClockSetBack": func(k *kit) {
		// A sidecar that died before is given up no later for it. One that beats by the new
		// clock lives, and one that left keeps the time that it left with.
		const living, left = other + 1, other + 2
		for _, host := range []backends.Identity{other, living, left} {
			k.join(k, host)
		}
		k.put("a")
		k.takes(other, 0)
		k.beat(k, left, backends.HeartbeatLeave)
		for _, host := range []backends.Identity{other, living, left} {
			if p := k.peer(host); p == nil || p.Expired {
				k.Fatalf("sidecar %d before anything happened: %+v", host, p)
			}
		}
		k.Shift(-2 * hostLease)
		k.beat(k, living, backends.HeartbeatRenew)
		for _, host := range []backends.Identity{left, living} {
			p := k.peer(host)
			if p == nil || p.Expired {
				k.Fatalf("sidecar %d after the jump: %+v", host, p)
			}
			if k.suspect(p); k.peer(host) == nil || k.peer(host).Dead {
				k.Fatalf("sidecar %d was given up", host)
			}
		}
		p := k.peer(other)
		if p == nil || !p.Expired {
			k.Fatalf("the dead one after the jump: %+v", p)
		}
		if r := k.suspect(p); r.Reaped[backends.CauseSidecarLost] != 1 {
			k.Fatalf("%+v, want its job reaped", r)
		}
	},
	"UntilItIsReapedItsLeasesHold": func(k *kit) {
		k.join(k, other)
		k.put(numbered(3)...)
		jobs := k.commit(k.claims(other, 3, 0, policy("q"))).Claims[0].Jobs
		k.Shift(hostLease + time.Second)
		p := k.peer(other)
		k.sweep(backends.Maintenance{Limit: 1, Suspects: []backends.Suspect{{Host: other, Heartbeats: p.Heartbeats, Timeout: p.Timeout}}})
		k.hostLost(other)
		if p := k.peer(other); p == nil || !p.Dead {
			k.Errorf("given up but not yet reaped, it looks like %+v", p)
		}
		if r := k.write(backends.Ack{Leases: each(jobs...)}); len(r.Lost) != 1 {
			k.Errorf("%d leases lost, want only the reaped one", len(r.Lost))
		}
	},
	"ATimedLeaseOutlivesItsSidecar": func(k *kit) {
		k.join(k, other)
		k.put("a")
		j := k.takes(other, time.Hour)
		k.Shift(hostLease + time.Second)
		if r := k.suspect(k.peer(other)); len(r.Reaped) != 0 {
			k.Fatalf("reaped %v", r.Reaped)
		}
		for range 3 {
			if r := k.sweep(backends.Maintenance{Limit: 1}); len(r.Reaped) != 0 {
				k.Fatalf("reaped %v", r.Reaped)
			}
		}
		if p := k.peer(other); p != nil {
			k.Errorf("a dead sidecar with a timed lease is kept: %+v", p)
		}
		k.settle(backends.Extend{Leases: each(j)}, 0)
		k.Shift(time.Hour)
		k.reaped(0, backends.CauseLeaseEnded)
	},
	"AnUnknownOwnersJobsAreFree": func(k *kit) { // as after a failover that lost its join
		k.put("a")
		k.settle(backends.Extend{Leases: each(k.one()), Bind: 99}, 0)
		k.reaped(0, backends.CauseSidecarLost)
	},
	"AnOrderlyExit": func(k *kit) {
		k.join(k, other)
		k.put("a", "b")
		jobs := k.commit(k.claims(other, 2, 0, policy("q"))).Claims[0].Jobs
		k.Shift(20 * time.Second)
		if p := k.beat(k, other, backends.HeartbeatLeave); !p.Alive {
			k.Error("the last beat says that it was given up")
		}
		k.hostLost(other)
		k.Shift(20 * time.Second) // within the grace of its last beat
		p := k.peer(other)
		if p == nil || p.Expired {
			k.Fatalf("within its grace it looks like %+v", p)
		}
		const next = backends.Identity(12)
		k.join(k, next)
		k.settle(backends.Ack{Leases: each(jobs[0])}, 0) // the old token, nobody alive who made it
		k.settle(backends.Extend{Leases: each(jobs[1]), Bind: next}, 0)
		k.Shift(hostLease)
		k.beat(k, next, backends.HeartbeatRenew)
		k.suspect(k.peer(other))
		k.settle(backends.Ack{Leases: each(jobs[1])}, 0)
		if pulse := k.beat(k, other, backends.HeartbeatRenew); pulse.Alive {
			k.Error("it left, was given up and is told that it lives")
		}
	},
	"ALeftSidecarIsGivenUpAfterItsGrace": func(k *kit) {
		k.join(k, other)
		k.put("a")
		k.takes(other, 0)
		k.beat(k, other, backends.HeartbeatLeave)
		p := k.peer(other)
		k.Shift(hostLease + time.Second)
		if r := k.suspect(p); r.Reaped[backends.CauseSidecarLost] != 1 {
			k.Fatalf("%+v, want its job back", r)
		}
	},
	"WhoNeverJoinedMayNotClaim": func(k *kit) {
		k.hostLost(99)
		if p := k.beat(k, 99, backends.HeartbeatRenew); p.Alive {
			k.Error("a row that is gone is alive")
		}
	},
	"JoiningTwiceIsOnce": func(k *kit) { // its first answer got lost
		for range 2 {
			if p := k.join(k, other); !p.Alive || len(p.Peers) != 1 || p.Peers[0].Host != me {
				k.Fatalf("%+v", p)
			}
		}
		before := k.peer(other)
		k.beat(k, other, backends.HeartbeatRenew)
		if after := k.peer(other); after.Heartbeats == before.Heartbeats {
			k.Error("a beat did not move the counter")
		}
	},
	"WhoReadsIsKnown": func(k *kit) {
		second := k.Again()
		beat := func(kind backends.HeartbeatKind, reads bool) {
			k.Helper()
			p, err := second.Heartbeat(k.Context(), backends.Heartbeat{Host: other, Kind: kind, Name: "reader", Timeout: hostLease, DepthLeader: reads})
			if err != nil || !p.Alive {
				k.Fatalf("beat: %+v, %v", p, err)
			}
			if got := k.peer(other); got == nil || got.DepthLeader != reads {
				k.Fatalf("a beat of kind %d that reads: %v; the peer is %+v", kind, reads, got)
			}
		}
		beat(backends.HeartbeatJoin, false)
		beat(backends.HeartbeatRenew, true)
		beat(backends.HeartbeatRenew, true)
		beat(backends.HeartbeatRenew, false)
		beat(backends.HeartbeatJoin, true)
		beat(backends.HeartbeatLeave, false)
	},
}
