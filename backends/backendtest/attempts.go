package backendtest

import (
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// lose takes the only ready job and releases it, charged.
func (k *kit) lose(cause backends.Cause) backends.Job {
	k.Helper()
	j := k.one()
	k.settle(backends.Release{Leases: each(j), Cause: cause, Message: "lost " + string(cause)}, 0)
	return j
}

// dueIn checks that the job is scheduled and due in d, and makes it ready.
func (k *kit) dueIn(id string, d time.Duration) {
	k.Helper()
	k.state(id, backends.StateScheduled)
	// The sweep's own answer is measured against the database's clock.
	r := k.sweep(backends.Maintenance{})
	if r.Next > d || r.Next < d-time.Second*3/4 {
		k.Fatalf("the job is due in %v, want %v", r.Next, d)
	}
	k.Shift(d)
	if r := k.sweep(backends.Maintenance{}); r.Promoted != 1 {
		k.Fatalf("%d promoted, want 1", r.Promoted)
	}
}

func (k *kit) failures(id string, want ...backends.Failure) {
	k.Helper()
	v := k.view(id)
	if v == nil || len(v.Failures) != len(want) {
		k.Fatalf("job %s: %+v, want %d failures", id, v, len(want))
	}
	for i, f := range v.Failures {
		if f.At.IsZero() {
			k.Errorf("failure %d has no time", i)
		}
		if f.At = (time.Time{}); f != want[i] {
			k.Errorf("failure %d is %+v, want %+v", i, f, want[i])
		}
	}
}

func (k *kit) nack(n backends.Nack) backends.Job {
	k.Helper()
	j := k.one()
	n.Leases = each(j)
	k.settle(n, 0)
	return j
}

var attempts = map[string]func(*kit){
	"BackoffDoublesToItsLimit": func(k *kit) {
		p := policy("q")
		p.MaxAttempts, p.BackoffMax = 9, 5*time.Second
		id := k.put("a")[0]
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
			jobs := k.commit(k.claims(me, 1, 0, p)).Claims[0].Jobs
			if jobs[0].Attempt != i+1 || jobs[0].MaxAttempts != 9 {
				k.Fatalf("attempt %d of %d, want %d of 9", jobs[0].Attempt, jobs[0].MaxAttempts, i+1)
			}
			k.settle(backends.Nack{Leases: each(jobs...), Error: "no"}, 0)
			k.dueIn(id, want)
		}
	},
	"NoBackoffAtAll": func(k *kit) {
		p := policy("q")
		p.Backoff, p.BackoffMax = 0, 0
		k.put("a")
		k.settle(backends.Nack{Leases: each(k.commit(k.claims(me, 1, 0, p)).Claims[0].Jobs...)}, 0)
		k.one()
	},
	"DeadWhenOutOfAttempts": func(k *kit) {
		id := k.put("a")[0]
		var want []backends.Failure
		for i, text := range []string{"first", "", "third"} {
			j := k.nack(backends.Nack{Error: text, HasDelay: true})
			if i > 0 && j.LastError != want[i-1].Message {
				k.Errorf("attempt %d came with the last error %q, want %q", i+1, j.LastError, want[i-1].Message)
			}
			want = append(want, backends.Failure{Attempt: i + 1, Cause: backends.CauseNacked, Message: text})
		}
		k.state(id, backends.StateDead)
		k.failures(id, want...)
		k.none()
	},
	"TheJobsOwnLimit": func(k *kit) {
		id := k.enqueue(backends.NewJob{Queue: "q", MaxAttempts: 1})[0]
		if j := k.lose(backends.CauseDisconnected); j.MaxAttempts != 1 {
			k.Errorf("max_attempts %d, want the job's 1", j.MaxAttempts)
		}
		k.state(id, backends.StateDead)
	},
	"NackDead": func(k *kit) {
		id := k.put("a")[0]
		k.nack(backends.Nack{Error: "hopeless", Dead: true})
		k.state(id, backends.StateDead)
		k.failures(id, backends.Failure{Attempt: 1, Cause: backends.CauseNacked, Message: "hopeless"})
		if v := k.view(id); v.FinishedAt.IsZero() || v.Worker != "" {
			k.Errorf("%+v", v)
		}
	},
	"NackWithADelay": func(k *kit) {
		id := k.put("a")[0]
		k.nack(backends.Nack{Delay: time.Minute, HasDelay: true})
		k.dueIn(id, time.Minute)
		if j := k.one(); j.Attempt != 2 {
			k.Errorf("attempt %d, want 2", j.Attempt)
		}
	},
	"AnUnchargedNackCostsNothing": func(k *kit) {
		id := k.put("a")[0]
		for range 5 { // more often than it has attempts
			if j := k.nack(backends.Nack{Error: "not now", Snooze: true}); j.Attempt != 1 || j.LastError != "" {
				k.Fatalf("attempt %d, last error %q; want the first again", j.Attempt, j.LastError)
			}
			k.Shift(time.Hour)
			k.sweep(backends.Maintenance{})
		}
		k.failures(id)
		k.nack(backends.Nack{Error: "now", HasDelay: true})
		k.nack(backends.Nack{HasDelay: true})
		k.nack(backends.Nack{Snooze: true})
		k.dueIn(id, 2*time.Second) // of the two attempts before it
	},
	"SnoozesInARowBackOff": func(k *kit) {
		id := k.put("a")[0]
		snooze := func(want ...time.Duration) {
			k.Helper()
			for _, d := range want {
				k.nack(backends.Nack{Snooze: true})
				k.dueIn(id, d)
			}
		}
		snooze(time.Second, 2*time.Second)
		k.settle(backends.Release{Leases: each(k.one()), Uncounted: true}, 0) // given back, not snoozed
		k.nack(backends.Nack{Snooze: true, HasDelay: true})                   // with a delay of its own
		snooze(4*time.Second, 5*time.Second, 5*time.Second)                   // to the limit
		k.nack(backends.Nack{HasDelay: true})                                 // an attempt ends the row
		snooze(time.Second, 2*time.Second)
		k.lose(backends.CauseDisconnected) // so does a loss, which is the first in a row: at once
		k.state(id, backends.StateReady)
		snooze(2*time.Second, 4*time.Second) // of the two attempts before
	},
	"FirstLossAtOnceSecondBacksOff": func(k *kit) {
		p := policy("q")
		p.MaxAttempts = 9
		id := k.put("a")[0]
		lose := func() {
			k.Helper()
			jobs := k.commit(k.claims(me, 1, 0, p)).Claims[0].Jobs
			if len(jobs) != 1 {
				k.Fatal("the job is not ready")
			}
			k.settle(backends.Release{Leases: each(jobs...), Cause: backends.CauseDisconnected}, 0)
		}
		lose()
		k.state(id, backends.StateReady)
		lose()
		k.dueIn(id, 2*time.Second)
		k.settle(backends.Nack{Leases: each(k.commit(k.claims(me, 1, 0, p)).Claims[0].Jobs...), HasDelay: true}, 0) // ends the row
		lose()
		k.state(id, backends.StateReady)
		lose()
		k.dueIn(id, 5*time.Second)
	},
	"AnUnchargedReturnDoesNotEndTheRow": func(k *kit) {
		id := k.put("a")[0]
		k.lose(backends.CauseSidecarLost)
		k.settle(backends.Release{Leases: each(k.one()), Uncounted: true}, 0)
		k.nack(backends.Nack{Snooze: true, HasDelay: true})
		k.lose(backends.CauseDisconnected)
		k.state(id, backends.StateScheduled)
	},
	"ATimeoutBacksOffAtOnce": func(k *kit) {
		id := k.put("a")[0]
		k.lose(backends.CauseTimedOut)
		k.dueIn(id, time.Second)
	},
	"EveryCauseIsKept": func(k *kit) {
		p := policy("q")
		p.MaxAttempts, p.Backoff, p.BackoffMax = 9, 0, 0
		id := k.put("a")[0]
		var want []backends.Failure
		for i, c := range []backends.Cause{backends.CauseDisconnected, backends.CauseTimedOut, backends.CauseLeaseEnded, backends.CauseSidecarLost} {
			jobs := k.commit(k.claims(me, 1, 0, p)).Claims[0].Jobs
			k.settle(backends.Release{Leases: each(jobs...), Cause: c, Message: "m\x7fé"}, 0)
			want = append(want, backends.Failure{Attempt: i + 1, Cause: c, Message: "m\x7fé"})
		}
		k.failures(id, want...)
	},
	"TheClaimsPolicyGoverns": func(k *kit) { // not that of whoever reaps
		p := policy("q")
		p.MaxAttempts = 1
		id := k.put("a")[0]
		k.commit(k.claims(me, 1, time.Second, p))
		k.Shift(time.Minute)
		k.sweep(backends.Maintenance{})
		k.state(id, backends.StateDead)
		k.failures(id, backends.Failure{Attempt: 1, Cause: backends.CauseLeaseEnded})
	},
	"FencesGrow": func(k *kit) {
		k.put("a")
		last := int64(0)
		for i := range 5 {
			j := k.one()
			if j.Fence <= last || j.Fence > 1<<53-1 {
				k.Fatalf("fence %d after %d", j.Fence, last)
			}
			last = j.Fence
			k.Shift(-time.Minute) // not even a clock that goes back repeats one
			k.settle(backends.Release{Leases: each(j), Uncounted: i%2 == 0, Cause: backends.CauseDisconnected}, 0)
			k.Shift(2 * time.Minute)
			k.sweep(backends.Maintenance{})
			if i == 2 {
				k.Shift(-3 * time.Minute)
			}
			if k.stats().Dead == 1 {
				return
			}
		}
	},
}
