package backendtest

import (
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// timed claims the only ready job with a timed lease and a limit for its run.
func (k *kit) timed(lease, timeout time.Duration) backends.Job {
	k.Helper()
	p := policy("q")
	p.Timeout, p.Backoff, p.BackoffMax, p.MaxAttempts = timeout, 0, 0, 99
	jobs := k.commit(k.claims(me, 1, lease, p)).Claims[0].Jobs
	if len(jobs) != 1 || jobs[0].Timeout != timeout {
		k.Fatalf("given %+v, want one job with the timeout %v", jobs, timeout)
	}
	return jobs[0]
}

// reaped moves the clock and checks what a sweep takes back: "" is nothing.
func (k *kit) reaped(after time.Duration, want backends.Cause) {
	k.Helper()
	k.Shift(after)
	r := k.sweep(backends.Maintenance{})
	n := 0
	for _, m := range r.Reaped {
		n += m
	}
	if want == "" && n != 0 || want != "" && (n != 1 || r.Reaped[want] != 1) {
		k.Fatalf("reaped %v, want one %q", r.Reaped, want)
	}
}

func (k *kit) held(b backends.Backend, host backends.Identity) []backends.ClaimedJob {
	k.Helper()
	h, err := b.ClaimedBy(k.Context(), host, "", 100)
	if err != nil {
		k.Fatalf("held: %v", err)
	}
	return h
}

var leases = map[string]func(*kit){
	"ATimedLeaseEnds": func(k *kit) {
		id := k.put("a")[0]
		k.timed(10*time.Second, 0)
		k.reaped(9*time.Second, "")
		k.reaped(time.Second, backends.CauseLeaseEnded)
		k.failures(id, backends.Failure{Attempt: 1, Cause: backends.CauseLeaseEnded})
	},
	"ASessionLeaseDoesNot": func(k *kit) {
		k.put("a")
		j := k.timed(0, 0)
		k.reaped(100*time.Hour, "") // the host's end has passed, but nobody gave it up
		k.settle(backends.Ack{Leases: each(j)}, 0)
	},
	"ExtendGivesTheTimeAgain": func(k *kit) {
		k.put("a")
		j := k.timed(10*time.Second, 0)
		for range 3 {
			k.reaped(8*time.Second, "")
			k.settle(backends.Extend{Leases: each(j)}, 0)
		}
		k.reaped(9*time.Second, "")
		k.reaped(time.Second, backends.CauseLeaseEnded)
	},
	"ExtendForAnotherTime": func(k *kit) {
		k.put("a")
		j := k.timed(10*time.Second, 0)
		k.settle(backends.Extend{Leases: each(j), Lease: time.Hour}, 0)
		k.reaped(59*time.Minute, "")
		k.settle(backends.Extend{Leases: each(j)}, 0) // an hour again
		k.reaped(59*time.Minute, "")
		k.reaped(time.Minute, backends.CauseLeaseEnded)
	},
	"ExtendMakesASessionLeaseTimed": func(k *kit) {
		k.put("a")
		j := k.timed(0, 0)
		k.settle(backends.Extend{Leases: each(j)}, 0) // only looked at
		if h := k.held(k, me); len(h) != 1 || h[0].Timed {
			k.Fatalf("held %+v, want a session lease", h)
		}
		k.settle(backends.Extend{Leases: each(j), Lease: 10 * time.Second}, 0)
		if h := k.held(k, me); len(h) != 1 || !h[0].Timed {
			k.Fatalf("held %+v, want a timed lease", h)
		}
		k.reaped(10*time.Second, backends.CauseLeaseEnded)
	},
	"BindMovesTheOwnerNotTheToken": func(k *kit) {
		id := k.put("a")[0]
		j := k.timed(10*time.Second, 0)
		k.join(k, other)
		k.settle(backends.Extend{Leases: each(j), Bind: other, Worker: "new"}, 0)
		if h := k.held(k, me); len(h) != 0 {
			k.Errorf("its first owner still has %+v", h)
		}
		want := backends.ClaimedJob{Lease: lease(j), Queue: "q"}
		if h := k.held(k, other); len(h) != 1 || h[0] != want {
			k.Errorf("its new owner has %+v, want %+v", h, want)
		}
		if v := k.view(id); v.Worker != "new" {
			k.Errorf("worker %q, want the new one", v.Worker)
		}
		k.reaped(time.Hour, "") // no longer timed
		k.settle(backends.Ack{Leases: each(j)}, 0)
	},
	"ReleasedByItsOwnerAlone": func(k *kit) {
		k.put("a")
		j := k.one()
		k.join(k, other)
		k.settle(backends.Extend{Leases: each(j), Bind: other}, 0)
		k.settle(backends.Release{Leases: each(j), Owner: me, Cause: backends.CauseDisconnected}, 1)
		k.settle(backends.Extend{Leases: each(j)}, 0)
		k.settle(backends.Release{Leases: each(j), Owner: other, Uncounted: true}, 0)
		k.one()
	},
	"NothingMovesTheDeadline": func(k *kit) {
		id := k.put("a")[0]
		j := k.timed(0, 10*time.Second)
		k.Shift(5 * time.Second)
		k.settle(backends.Extend{Leases: each(j), Lease: time.Hour}, 0)
		k.settle(backends.Extend{Leases: each(j)}, 0)
		k.settle(backends.Extend{Leases: each(j), Bind: me}, 0)
		k.reaped(4*time.Second, "")
		k.reaped(time.Second, backends.CauseTimedOut)
		k.failures(id, backends.Failure{Attempt: 1, Cause: backends.CauseTimedOut})
		k.settle(backends.Ack{Leases: each(j)}, 1)
	},
	"TheEarlierOfLeaseAndDeadline": func(k *kit) {
		k.put("a")
		k.timed(10*time.Second, 5*time.Second)
		k.reaped(4*time.Second, "")
		k.reaped(time.Second, backends.CauseTimedOut)
		k.timed(5*time.Second, 10*time.Second)
		k.reaped(5*time.Second, backends.CauseLeaseEnded)
	},
	"TheJobsOwnTimeout": func(k *kit) {
		k.enqueue(backends.NewJob{Queue: "q", Timeout: 3 * time.Second})
		p := policy("q")
		p.Timeout = time.Hour
		if j := k.commit(k.claims(me, 1, 0, p)).Claims[0].Jobs[0]; j.Timeout != 3*time.Second {
			k.Errorf("timeout %v, want the job's", j.Timeout)
		}
		k.reaped(3*time.Second, backends.CauseTimedOut)
	},
	"HeldInPages": func(k *kit) {
		k.put(numbered(25)...)
		want := map[backends.Lease]bool{}
		for _, j := range k.claim(25) {
			want[lease(j)] = true
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
					k.Errorf("%+v came twice, or was never given", h.Lease)
				}
				delete(want, h.Lease)
			}
			after = page[len(page)-1].Lease.Job
		}
		if len(want) != 0 {
			k.Errorf("%d leases are missing", len(want))
		}
		if h := k.held(k, other); len(h) != 0 {
			k.Errorf("another host is said to have %v", h)
		}
	},
}
