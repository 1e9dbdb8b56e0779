package backendtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// limit changes the limits of queue "q". It skips the test if the engine keeps none.
func (k *kit) limit(c backends.LimitsChange) {
	k.Helper()
	if err := k.tryLimit(c); err != nil {
		k.Fatalf("limit: %v", err)
	}
}

func (k *kit) tryLimit(c backends.LimitsChange) error {
	k.Helper()
	_, _, err := k.inspector().Command(k.Context(), backends.Command{Kind: backends.Limit, Queue: "q", Limits: c})
	return err
}

// hasLimits reports whether queues of the engine can have limits.
func (k *kit) hasLimits() bool {
	k.Helper()
	u, ok := errors.AsType[*backends.UnsupportedError](k.tryLimit(backends.LimitsChange{None: true}))
	return !ok || !u.NoLimits
}

func capOf(n int64) backends.LimitsChange { return backends.LimitsChange{MaxClaimed: &n} }

// rateOf is a rate in an hour, so that no test depends on how long it takes.
func rateOf(jobs, burst int64) backends.LimitsChange {
	return backends.LimitsChange{Rate: &backends.Rate{Jobs: jobs, Per: time.Hour}, Burst: &burst}
}

func gated(queue string) backends.Policy {
	p := policy(queue)
	p.Gated = true
	return p
}

// gatedClaim claims up to n jobs of queue "q" through its gate.
func (k *kit) gatedClaim(b backends.Backend, sidecar backends.Identity, n int) ([]backends.Job, backends.GateResult) {
	k.Helper()
	r, err := b.Commit(k.Context(), k.claimBatch(sidecar, n, 0, gated("q")))
	if err != nil {
		k.Fatalf("commit: %v", err)
	}
	if c := r.Claims[0]; len(c.Gates) == 1 && c.Gates[0].Queue == "q" {
		return c.Jobs, c.Gates[0]
	}
	k.Fatalf("the claim reports the gates %+v, want one of q", r.Claims[0].Gates)
	return nil, backends.GateResult{}
}

// wantGated checks how many of n jobs a claim gets, and what it finds out about the gate.
func (k *kit) wantGated(b backends.Backend, n, want int, closed bool, after time.Duration) []backends.Job {
	k.Helper()
	jobs, g := k.gatedClaim(b, me, n)
	if len(jobs) != want || g.Closed != closed || g.After != after || g.Missed || g.Removed {
		k.Fatalf("claimed %d jobs of %d, %+v; want %d, closed %v, after %v", len(jobs), n, g, want, closed, after)
	}
	return jobs
}

// wantClosed checks how many of n jobs a claim gets before the rate closes the gate for less than the time most.
func (k *kit) wantClosed(b backends.Backend, n, want int, most time.Duration) {
	k.Helper()
	jobs, g := k.gatedClaim(b, me, n)
	if len(jobs) != want || !g.Closed || g.After <= most/2 || g.After > most {
		k.Fatalf("claimed %d jobs of %d, %+v; want %d, closed for about %v", len(jobs), n, g, want, most)
	}
}

var limitTests = map[string]func(*kit){
	"CapHoldsOverHandles": func(k *kit) {
		k.limit(capOf(3))
		second := k.OpenAnother()
		k.enqueueMany(10)
		jobs := k.wantGated(k, 2, 2, false, 0)
		jobs = append(jobs, k.wantGated(second, 2, 1, true, 0)...)
		k.wantGated(k, 2, 0, true, 0)
		k.write(backends.Ack{Leases: leasesOf(jobs[0])})
		k.write(backends.Nack{Leases: leasesOf(jobs[2]), Error: "no"})
		k.wantGated(second, 5, 2, true, 0)
		k.wantGated(k, 1, 0, true, 0)
	},
	"CapIsExactUnderConcurrentClaims": func(k *kit) {
		const limit, jobs = 3, 120
		k.limit(capOf(limit))
		handles := []backends.Backend{k.Backend, k.OpenAnother()}
		k.enqueueMany(jobs)
		var now, left atomic.Int64
		left.Store(jobs)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				for left.Load() > 0 {
					r, err := handles[i%2].Commit(k.Context(), k.claimBatch(me, 2, 0, gated("q")))
					if _, locked := errors.AsType[*backends.LockedError](err); locked { // by the others, on a busy machine
						continue
					}
					if err != nil {
						k.Error(err)
						return
					}
					got := r.Claims[0].Jobs
					if len(got) == 0 {
						continue
					}
					if n := now.Add(int64(len(got))); n > limit {
						k.Errorf("%d jobs were claimed at a time", n)
					}
					now.Add(-int64(len(got)))
					if _, err := handles[i%2].Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(got...)}}}); err != nil {
						k.Error(err)
						return
					}
					left.Add(-int64(len(got)))
				}
			})
		}
		wg.Wait()
	},
	"CapCountsJobsOfADeadSidecarUntilTheyAreReaped": func(k *kit) {
		k.limit(capOf(2))
		k.enqueueMany(4)
		k.join(k, other)
		if jobs, _ := k.gatedClaim(k, other, 4); len(jobs) != 2 {
			k.Fatalf("claimed %d jobs, want 2", len(jobs))
		}
		k.AdvanceClock(2 * sidecarTimeout)
		k.heartbeat(k, me, backends.HeartbeatRenew)
		k.wantGated(k, 1, 0, true, 0)
		for _, p := range k.heartbeat(k, me, backends.HeartbeatRenew).Peers {
			if p.Sidecar == other {
				k.maintain(backends.Maintenance{Suspects: []backends.Suspect{{Sidecar: other, Heartbeats: p.Heartbeats}}})
			}
		}
		k.maintain(backends.Maintenance{})
		k.wantGated(k, 4, 2, true, 0)
	},
	"CapCountsJobsThatWereClaimedBeforeIt": func(k *kit) {
		k.enqueueMany(6)
		jobs := k.claim(3)
		k.limit(capOf(4))
		k.wantGated(k, 3, 1, true, 0)
		k.limit(capOf(2))
		k.wantGated(k, 3, 0, true, 0)
		k.write(backends.Ack{Leases: leasesOf(jobs...)})
		k.wantGated(k, 3, 1, true, 0)
	},
	"RateAndBurst": func(k *kit) {
		const step = 6 * time.Minute
		k.limit(rateOf(10, 5))
		k.enqueueMany(40)
		k.wantGated(k, 3, 3, false, 0)
		k.wantClosed(k.OpenAnother(), 20, 2, step)
		k.wantClosed(k, 20, 0, step)
		k.AdvanceClock(step)
		k.wantClosed(k, 20, 1, step)
		k.AdvanceClock(time.Hour)
		k.wantGated(k, 4, 4, false, 0)
		k.wantClosed(k, 4, 1, step)
	},
	"RateAfterTheClockWasSetBack": func(k *kit) {
		const step = 6 * time.Minute
		k.limit(rateOf(10, 2))
		k.enqueueMany(10)
		k.wantClosed(k, 9, 2, step)
		k.AdvanceClock(-time.Hour)
		k.wantClosed(k, 9, 0, step)
		k.AdvanceClock(2 * step)
		k.wantClosed(k, 9, 2, step)
	},
	"ClaimThatDoesNotKnowOfLimits": func(k *kit) {
		k.limit(capOf(1))
		k.enqueueMany(2)
		k.enqueue(backends.NewJob{Queue: "p", Payload: []byte("p")})
		r := k.commit(k.claimBatch(me, 2, 0, policy("q"), policy("p"))).Claims[0]
		k.wantJobs(r.Jobs, "p")
		if !r.More || !slices.Equal(r.Gates, []backends.GateResult{{Queue: "q", Missed: true}}) {
			k.Errorf("the result is %+v", r)
		}
		b := k.claimBatch(me, 2, 0, policy("q"))
		b.Writes = []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "p", Payload: []byte("x")}}}}
		if r := k.commit(b); len(r.Claims[0].Jobs) != 0 || !r.Claims[0].More || r.Writes[0].Stored[0].ID == "" {
			k.Errorf("beside a write: %+v", r)
		}
		r = k.commit(k.claimBatch(me, 3, 0, gated("q"), policy("p"))).Claims[0]
		if len(r.Jobs) != 2 || r.Jobs[0].Queue != "q" || string(r.Jobs[1].Payload) != "x" {
			k.Errorf("a claim of both queues: %+v", r)
		}
	},
	"LimitsOfAMixedClaim": func(k *kit) {
		k.limit(capOf(2))
		k.enqueuePayloads("q1", "q2", "q3")
		for _, p := range []string{"a1", "a2"} {
			k.enqueue(backends.NewJob{Queue: "a", Payload: []byte(p)})
		}
		k.enqueue(backends.NewJob{Queue: "z", Payload: []byte("z1")})
		r := k.commit(k.claimBatch(me, 9, 0, policy("a"), gated("q"), policy("z"))).Claims[0]
		k.wantJobs(r.Jobs, "a1", "a2", "q1", "q2", "z1")
		for i, j := range r.Jobs {
			if i > 0 && j.Token == r.Jobs[i-1].Token {
				k.Error("two jobs have one token")
			}
		}
	},
	"HeldGateDelaysNoOtherQueue": func(k *kit) {
		if k.LockGate == nil {
			return
		}
		k.limit(capOf(5))
		k.enqueuePayloads("q1", "q2")
		k.wantGated(k, 1, 1, false, 0)
		for _, p := range []string{"a1", "a2", "a3"} {
			k.enqueue(backends.NewJob{Queue: "a", Payload: []byte(p)})
		}
		unlock := k.LockGate("q")
		mixed := func() (backends.Results, error) {
			b := k.claimBatch(me, 1, 0, gated("q"), policy("a"))
			b.WaitForLocks = true // as the bridge does
			return k.Commit(k.Context(), b)
		}
		for _, want := range []string{"a1", "a2", "a3"} {
			r, err := mixed()
			if err != nil || len(r.Claims) != 1 {
				k.Fatalf("beside a held gate: %+v, %v", r, err)
			}
			k.wantJobs(r.Claims[0].Jobs, want)
			if !r.Claims[0].More {
				k.Error("the claim does not report that it left a queue out")
			}
		}
		if _, err := mixed(); !strings.Contains(fmt.Sprint(err), "keeps the limits of q locked (rows of the table qsidecar_gates)") {
			k.Errorf("without jobs of the other queue, the claim ends with %v", err)
		}
		unlock()
		r, err := mixed()
		if err != nil {
			k.Fatal(err)
		}
		k.wantJobs(r.Claims[0].Jobs, "q2")
		if r.Claims[0].More || len(r.Claims[0].Gates) != 1 || r.Claims[0].Gates[0].Queue != "q" {
			k.Errorf("after the gate is free: %+v", r.Claims[0])
		}
	},
	"LostCommitOfAGatedClaim": func(k *kit) {
		k.limit(capOf(1))
		k.limit(rateOf(10, 3))
		k.enqueueMany(9)
		b := k.claimBatch(me, 2, 0, gated("q"))
		b.WaitForLocks = true // the server can notice later that the connection is gone
		claimed := func() bool { return k.stats().Claimed == 1 }
		k.commitLost(b, true, claimed)
		k.commitLost(b, false, claimed)
		// The job counts for the cap until it is found again, and released.
		k.wantGated(k.OpenAnother(), 1, 0, true, 0)
		h := k.claimedBy(k, me)
		if len(h) != 1 {
			k.Fatalf("claimed by me: %v", h)
		}
		k.writeLosing(backends.Release{Leases: []backends.Lease{h[0].Lease}, Uncounted: true}, 0)
		// The lost commit that happened has used up one start of three, and the other one none.
		for range 2 {
			jobs := k.wantGated(k, 1, 1, false, 0)
			k.write(backends.Ack{Leases: leasesOf(jobs...)})
		}
		k.wantClosed(k, 1, 0, 6*time.Minute)
	},
	"LimitsOfALIFOQueue": func(k *kit) {
		k.limit(capOf(2))
		k.enqueuePayloads("1", "2", "3")
		p := gated("q")
		p.LIFO = true
		k.wantJobs(k.commit(k.claimBatch(me, 3, 0, p)).Claims[0].Jobs, "3", "2")
	},
	"RemovedLimits": func(k *kit) {
		k.limit(capOf(1))
		k.enqueueMany(5)
		k.wantGated(k, 2, 1, true, 0)
		k.limit(backends.LimitsChange{None: true})
		if jobs, g := k.gatedClaim(k, me, 2); len(jobs) != 2 || !g.Removed {
			k.Errorf("claimed %d jobs, %+v", len(jobs), g)
		}
		if jobs := k.claim(2); len(jobs) != 2 {
			k.Errorf("claimed %d jobs without a gate", len(jobs))
		}
	},
	"PauseAndLimits": func(k *kit) {
		k.limit(capOf(3))
		k.enqueueMany(2)
		k.operate(backends.Command{Kind: backends.Pause, Queue: "q"}, 0, false)
		k.wantGated(k, 2, 0, false, 0)
		k.operate(backends.Command{Kind: backends.Resume, Queue: "q"}, 0, true)
		if s := k.stats(); s.Limits.MaxClaimed != 3 {
			k.Errorf("the limits are %+v after the pause", s.Limits)
		}
		k.wantGated(k, 2, 2, false, 0)
	},
	"LimitsAreStored": func(k *kit) {
		k.limit(capOf(3))
		k.limit(rateOf(100, 7))
		want := backends.Limits{MaxClaimed: 3, Rate: backends.Rate{Jobs: 100, Per: time.Hour}, Burst: 7}
		all, err := k.OpenAnother().(backends.Inspector).Stats(k.Context(), "")
		if err != nil || len(all) != 1 || all[0].Limits != want {
			k.Errorf("the statistics are %+v, %v", all, err)
		}
		none := int64(0)
		k.limit(backends.LimitsChange{Rate: &backends.Rate{}})
		if got := k.stats().Limits; got != (backends.Limits{MaxClaimed: 3}) {
			k.Errorf("without the rate: %+v", got)
		}
		if err := k.tryLimit(rateOf(0, 5)); !errors.Is(err, backends.ErrLimits) {
			k.Errorf("a burst without a rate: %v", err)
		}
		k.limit(backends.LimitsChange{MaxClaimed: &none})
		if all, err := k.inspector().Stats(k.Context(), ""); err != nil || len(all) != 0 {
			k.Errorf("no limit is left: %+v, %v", all, err)
		}
	},
}
