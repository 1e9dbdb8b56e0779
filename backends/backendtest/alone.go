package backendtest

import (
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// lastAttempt stores a job with two attempts, whose first one was lost with its worker.
func (k *kit) lastAttempt() (id string) {
	k.Helper()
	id = k.enqueue(backends.NewJob{Queue: "q", Payload: []byte("suspect"), MaxAttempts: 2})[0]
	if j := k.loseOne(backends.CauseDisconnected); j.Alone {
		k.Fatalf("the first attempt is alone: %+v", j)
	}
	return id
}

// claimAlone claims the only ready job, which must be alone, and not counted yet.
func (k *kit) claimAlone(id string, attempt int) backends.Job {
	k.Helper()
	j := k.claimOne()
	if j.ID != id || !j.Alone || j.Attempt != attempt {
		k.Fatalf("claimed %+v, want job %s alone, attempt %d", j, id, attempt)
	}
	if v := k.view(id); v.Attempt != attempt-1 || v.Worker != "" || v.State != backends.StateClaimed {
		k.Fatalf("claimed, it is shown as %+v, want attempt %d and no worker", v, attempt-1)
	}
	return j
}

// aloneTests are about Job.Alone.
var aloneTests = map[string]func(*kit){
	"DeliveryCountsTheAttempt": func(k *kit) {
		id := k.lastAttempt()
		k.writeLosing(deliveryOf("bob", k.claimAlone(id, 2)), 0)
		if v := k.view(id); v.Attempt != 2 || v.Worker != "bob" {
			k.Errorf("delivered, it is shown as %+v", v)
		}
	},
	"TimeLimitBeginsAtTheHandOut": func(k *kit) {
		p := policy("q")
		p.Timeout = 10 * time.Second
		id := k.lastAttempt()
		j := k.onlyJob(k.claimBatch(me, 1, 0, p))
		if !j.Alone {
			k.Fatalf("%+v", j)
		}
		k.wantReaped(20*time.Minute, "")
		k.writeLosing(handedOut(j, 4*time.Second), 0)
		k.wantReaped(5*time.Second, "")
		k.wantReaped(time.Second, backends.CauseTimedOut)
		k.wantState(id, backends.StateDead)
	},
	"ALossKillsItBeforeItIsRecorded": func(k *kit) {
		id := k.lastAttempt()
		k.writeLosing(backends.Release{Leases: leasesOf(k.claimAlone(id, 2)), Cause: backends.CauseDisconnected}, 0)
		k.wantState(id, backends.StateDead)
	},
	"ALostSidecarDoesNotKillIt": func(k *kit) { // no worker had it
		id := k.lastAttempt()
		k.join(k, other)
		k.onlyJob(k.claimBatch(other, 1, 0, policy("q")))
		if r := k.stopAndEvict(other); r.Reaped[backends.CauseSidecarLost] != 1 {
			k.Fatalf("%+v", r)
		}
		k.wantState(id, backends.StateReady)
		k.claimAlone(id, 2)
	},
	"ReturnedItKeepsItsPlace": func(k *kit) {
		id := k.lastAttempt()
		k.enqueuePayloads("later")
		for range 2 {
			b := k.claimBatch(me, 1, 0, policy("q"))
			j := k.onlyJob(b)
			if j.ID != id || !j.Alone {
				k.Fatalf("claimed %+v, want job %s alone", j, id)
			}
			k.writeLosing(backends.Release{Leases: leasesOf(j), Uncounted: true}, 0)
		}
	},
	"OthersInItsClaimAreNotAlone": func(k *kit) {
		k.enqueuePayloads("first")
		kept := k.claimOne()
		k.lastAttempt()
		k.writeLosing(backends.Release{Leases: leasesOf(kept), Uncounted: true}, 0) // before the other one
		last := k.enqueuePayloads("last")[0]
		for _, prefetch := range []bool{false, true} {
			b := k.claimBatch(me, 4, 0, policy("q"))
			for i := range b.Claims[0].Slots {
				b.Claims[0].Slots[i].Prefetch = prefetch
			}
			jobs := k.commit(b).Claims[0].Jobs
			k.wantJobs(jobs, "first", "suspect", "last")
			if jobs[0].Alone || !jobs[1].Alone || jobs[2].Alone {
				k.Errorf("prefetched %v: %+v", prefetch, jobs)
			}
			if v := k.view(last); !prefetch && (v.Attempt != 1 || v.Worker != "w") {
				k.Errorf("beside it: %+v", v)
			}
			k.writeLosing(backends.Release{Leases: leasesOf(jobs...), Uncounted: true}, 0)
		}
	},
	"OnlyAfterALoss": func(k *kit) {
		for what, fail := range map[string]func() backends.Write{
			"nacked":     func() backends.Write { return backends.Nack{HasDelay: true} },
			"timed out":  func() backends.Write { return backends.Release{Cause: backends.CauseTimedOut} },
			"given back": func() backends.Write { return backends.Release{Uncounted: true} },
		} {
			id := k.enqueue(backends.NewJob{Queue: "q", MaxAttempts: 2})[0]
			k.write(withLeases(fail(), leasesOf(k.claimOne())))
			k.AdvanceClock(time.Minute)
			k.maintain(backends.Maintenance{})
			j := k.claimOne()
			if j.ID != id || j.Alone {
				k.Errorf("%s: %+v", what, j)
			}
			k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0)
		}
		id := k.lastAttempt() // a nack ends the row of losses, and a lost sidecar is a loss too
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claimAlone(id, 2)), Dead: true}, 0)
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", IDs: []string{id}}, 1, true)
		if j := k.loseOne(backends.CauseSidecarLost); j.ID != id || j.Alone {
			k.Errorf("retried by an operator: %+v", j)
		}
		k.claimAlone(id, 2)
	},
	"ABindReturnsIt": func(k *kit) {
		id := k.lastAttempt()
		k.enqueuePayloads("later")
		jobs := k.claim(2)
		if len(jobs) != 2 || jobs[0].ID != id {
			k.Fatalf("%+v", jobs)
		}
		k.join(k, other)
		r := k.writeLosing(backends.Extend{Leases: leasesOf(jobs...), Bind: other, Worker: "new"}, 0)
		if len(r.Alone) != 1 || r.Alone[0] != jobs[0].Lease() {
			k.Errorf("alone: %+v, want the lease of job %s", r.Alone, id)
		}
		if r := k.writeLosing(backends.Extend{Leases: leasesOf(jobs...)}, 0); len(r.Alone) > 0 {
			k.Errorf("an extend: %+v", r)
		}
	},
	"NotWithATimedLease": func(k *kit) {
		id := k.lastAttempt()
		j := k.onlyJob(k.claimBatch(me, 1, time.Minute, policy("q")))
		if v := k.view(id); j.Alone || v.Attempt != 2 || v.Worker != "w" {
			k.Errorf("%+v, shown as %+v", j, v)
		}
	},
}
