package backendtest

import (
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// claimTimed claims the only ready job, with a lease (0: session) and a run time limit.
func (k *kit) claimTimed(lease, timeout time.Duration) backends.Job {
	k.Helper()
	p := policy("q")
	p.Timeout, p.Backoff, p.BackoffMax, p.MaxAttempts = timeout, 0, 0, 99
	jobs := k.commit(k.claimBatch(me, 1, lease, p)).Claims[0].Jobs
	if len(jobs) != 1 || jobs[0].Timeout != timeout {
		k.Fatalf("claimed %+v, want one job with the timeout %v", jobs, timeout)
	}
	return jobs[0]
}

// wantReaped advances the clock and checks what maintenance reaps. An empty cause means nothing.
func (k *kit) wantReaped(after time.Duration, want backends.Cause) {
	k.Helper()
	k.AdvanceClock(after)
	r := k.maintain(backends.Maintenance{})
	n := 0
	for _, m := range r.Reaped {
		n += m
	}
	if want == "" && n != 0 || want != "" && (n != 1 || r.Reaped[want] != 1) {
		k.Fatalf("reaped %v, want one %q", r.Reaped, want)
	}
}

func (k *kit) claimedBy(b backends.Backend, sidecar backends.Identity) []backends.ClaimedJob {
	k.Helper()
	h, err := b.ClaimedBy(k.Context(), sidecar, "", 100)
	if err != nil {
		k.Fatalf("claimed by: %v", err)
	}
	return h
}

var leaseTests = map[string]func(*kit){
	"TimedLeaseEnds": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		k.claimTimed(10*time.Second, 0)
		k.wantReaped(9*time.Second, "")
		k.wantReaped(time.Second, backends.CauseLeaseEnded)
		k.wantFailures(id, backends.Failure{Attempt: 1, Cause: backends.CauseLeaseEnded})
	},
	"SessionLeaseDoesNotEnd": func(k *kit) {
		k.enqueuePayloads("a")
		j := k.claimTimed(0, 0)
		k.wantReaped(100*time.Hour, "") // the sidecar has expired, but none evicted it
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0)
	},
	"ExtendRenewsTheTime": func(k *kit) {
		k.enqueuePayloads("a")
		j := k.claimTimed(10*time.Second, 0)
		for range 3 {
			k.wantReaped(8*time.Second, "")
			k.writeLosing(backends.Extend{Leases: leasesOf(j)}, 0)
		}
		k.wantReaped(9*time.Second, "")
		k.wantReaped(time.Second, backends.CauseLeaseEnded)
	},
	"ExtendSetsAnotherTime": func(k *kit) {
		k.enqueuePayloads("a")
		j := k.claimTimed(10*time.Second, 0)
		k.writeLosing(backends.Extend{Leases: leasesOf(j), Lease: time.Hour}, 0)
		k.wantReaped(59*time.Minute, "")
		k.writeLosing(backends.Extend{Leases: leasesOf(j)}, 0) // an hour again
		k.wantReaped(59*time.Minute, "")
		k.wantReaped(time.Minute, backends.CauseLeaseEnded)
	},
	"ExtendMakesASessionLeaseTimed": func(k *kit) {
		k.enqueuePayloads("a")
		j := k.claimTimed(0, 0)
		k.writeLosing(backends.Extend{Leases: leasesOf(j)}, 0) // an Extend without values changes nothing
		if h := k.claimedBy(k, me); len(h) != 1 || h[0].Timed {
			k.Fatalf("claimed by me: %+v, want a session lease", h)
		}
		k.writeLosing(backends.Extend{Leases: leasesOf(j), Lease: 10 * time.Second}, 0)
		if h := k.claimedBy(k, me); len(h) != 1 || !h[0].Timed {
			k.Fatalf("claimed by me: %+v, want a timed lease", h)
		}
		k.wantReaped(10*time.Second, backends.CauseLeaseEnded)
	},
	"BindChangesTheOwnerNotTheToken": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		j := k.claimTimed(10*time.Second, 0)
		k.join(k, other)
		k.writeLosing(backends.Extend{Leases: leasesOf(j), Bind: other, Worker: "new"}, 0)
		if h := k.claimedBy(k, me); len(h) != 0 {
			k.Errorf("its first owner still has %+v", h)
		}
		want := backends.ClaimedJob{Lease: j.Lease(), Queue: "q"}
		if h := k.claimedBy(k, other); len(h) != 1 || h[0] != want {
			k.Errorf("its new owner has %+v, want %+v", h, want)
		}
		if v := k.view(id); v.Worker != "new" {
			k.Errorf("worker %q, want the new one", v.Worker)
		}
		k.wantReaped(time.Hour, "") // it is a session lease now
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0)
	},
	"OnlyItsOwnerReleasesALease": func(k *kit) {
		k.enqueuePayloads("a")
		j := k.claimOne()
		k.join(k, other)
		k.writeLosing(backends.Extend{Leases: leasesOf(j), Bind: other}, 0)
		k.writeLosing(backends.Release{Leases: leasesOf(j), Owner: me, Cause: backends.CauseDisconnected}, 1)
		k.writeLosing(backends.Extend{Leases: leasesOf(j)}, 0)
		k.writeLosing(backends.Release{Leases: leasesOf(j), Owner: other, Uncounted: true}, 0)
		k.claimOne()
	},
	"ExtendDoesNotMoveTheDeadline": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		j := k.claimTimed(0, 10*time.Second)
		k.AdvanceClock(5 * time.Second)
		k.writeLosing(backends.Extend{Leases: leasesOf(j), Lease: time.Hour}, 0)
		k.writeLosing(backends.Extend{Leases: leasesOf(j)}, 0)
		k.writeLosing(backends.Extend{Leases: leasesOf(j), Bind: me}, 0)
		k.wantReaped(4*time.Second, "")
		k.wantReaped(time.Second, backends.CauseTimedOut)
		k.wantFailures(id, backends.Failure{Attempt: 1, Cause: backends.CauseTimedOut})
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 1)
	},
	"EarlierOfLeaseAndDeadlineEndsAClaim": func(k *kit) {
		k.enqueuePayloads("a")
		k.claimTimed(10*time.Second, 5*time.Second)
		k.wantReaped(4*time.Second, "")
		k.wantReaped(time.Second, backends.CauseTimedOut)
		k.claimTimed(5*time.Second, 10*time.Second)
		k.wantReaped(5*time.Second, backends.CauseLeaseEnded)
	},
	"JobsOwnTimeout": func(k *kit) {
		k.enqueue(backends.NewJob{Queue: "q", Timeout: 3 * time.Second})
		p := policy("q")
		p.Timeout = time.Hour
		if j := k.commit(k.claimBatch(me, 1, 0, p)).Claims[0].Jobs[0]; j.Timeout != 3*time.Second {
			k.Errorf("timeout %v, want the job's", j.Timeout)
		}
		k.wantReaped(3*time.Second, backends.CauseTimedOut)
	},
	"ClaimedByInPages": func(k *kit) {
		k.enqueuePayloads(numbered(25)...)
		want := map[backends.Lease]bool{}
		for _, j := range k.claim(25) {
			want[j.Lease()] = true
		}
		after := ""
		for pages := 0; ; pages++ {
			page, err := k.ClaimedBy(k.Context(), me, after, 10)
			if err != nil {
				k.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			if len(page) > 10 || pages > 2 {
				k.Fatalf("page %d has %d rows", pages, len(page))
			}
			for _, h := range page {
				if !want[h.Lease] {
					k.Errorf("%+v is listed twice or was never claimed", h.Lease)
				}
				delete(want, h.Lease)
			}
			after = page[len(page)-1].Lease.Job
		}
		if len(want) != 0 {
			k.Errorf("%d leases are missing", len(want))
		}
		if h := k.claimedBy(k, other); len(h) != 0 {
			k.Errorf("claims listed for another sidecar: %v", h)
		}
	},
}
