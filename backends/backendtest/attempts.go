package backendtest

import (
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// loseOne claims the only ready job and releases it with the cause, which counts an attempt.
func (k *kit) loseOne(cause backends.Cause) backends.Job {
	k.Helper()
	j := k.claimOne()
	k.writeLosing(backends.Release{Leases: leasesOf(j), Cause: cause, Message: "lost " + string(cause)}, 0)
	return j
}

// wantDueIn checks that the job is scheduled and due in d, and makes it ready.
func (k *kit) wantDueIn(id string, d time.Duration) {
	k.Helper()
	k.wantState(id, backends.StateScheduled)
	// MaintenanceResult.Next can leave out a job that is due in more than a second, so only the clock shows it.
	early := d - time.Millisecond
	for i, by := range []time.Duration{early, d - early} {
		k.AdvanceClock(by)
		if r := k.maintain(backends.Maintenance{}); r.Promoted != i {
			again := k.maintain(backends.Maintenance{})
			k.Fatalf("%d promoted after %v, want the job to be promoted after %v; the next maintenance promoted %d, and the job is %+v",
				r.Promoted, early+time.Duration(i)*by, d, again.Promoted, k.view(id))
		}
	}
}

func (k *kit) wantFailures(id string, want ...backends.Failure) {
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

func (k *kit) nackOne(n backends.Nack) backends.Job {
	k.Helper()
	j := k.claimOne()
	n.Leases = leasesOf(j)
	k.writeLosing(n, 0)
	return j
}

var attemptTests = map[string]func(*kit){
	"BackoffDoublesUpToItsMaximum": func(k *kit) {
		p := policy("q")
		p.MaxAttempts, p.BackoffMax = 9, 5*time.Second
		id := k.enqueuePayloads("a")[0]
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
			jobs := k.commit(k.claimBatch(me, 1, 0, p)).Claims[0].Jobs
			if jobs[0].Attempt != i+1 || jobs[0].MaxAttempts != 9 {
				k.Fatalf("attempt %d of %d, want %d of 9", jobs[0].Attempt, jobs[0].MaxAttempts, i+1)
			}
			k.writeLosing(backends.Nack{Leases: leasesOf(jobs...), Error: "no"}, 0)
			k.wantDueIn(id, want)
		}
	},
	"JitterChangesBackoffs": func(k *kit) {
		half := func(queue string) float64 {
			if queue != "q" {
				k.Errorf("the jitter of the queue %q, want q", queue)
			}
			return 0.5
		}
		id := k.enqueue(backends.NewJob{Queue: "q", MaxAttempts: 9})[0]
		for _, x := range []struct {
			write backends.Write
			want  time.Duration // policy("q") has back-offs of 1, 2, 4, 5 and 5 s
		}{
			{backends.Nack{Snooze: true}, 1500 * time.Millisecond},
			{backends.Nack{}, 1500 * time.Millisecond},
			{backends.Nack{HasDelay: true, Delay: 3 * time.Second}, 3 * time.Second},
			{backends.Release{Cause: backends.CauseTimedOut}, 6 * time.Second},
			{backends.Release{Cause: backends.CauseDisconnected}, 0}, // the first loss
			{backends.Release{Cause: backends.CauseDisconnected}, 7500 * time.Millisecond},
		} {
			w := withLeases(x.write, leasesOf(k.claimOne()))
			k.commit(backends.CommitContent{Writes: []backends.Write{w}, Jitter: half})
			if x.want > 0 {
				k.wantDueIn(id, x.want)
			}
		}
		k.commit(k.claimBatch(me, 1, time.Second, policy("q")))
		k.AdvanceClock(time.Second)
		if r := k.maintain(backends.Maintenance{Jitter: half}); r.Reaped[backends.CauseLeaseEnded] != 1 {
			k.Fatalf("%+v", r)
		}
		k.wantDueIn(id, 7500*time.Millisecond)
	},
	"ZeroBackoffRetriesAtOnce": func(k *kit) {
		p := policy("q")
		p.Backoff, p.BackoffMax = 0, 0
		k.enqueuePayloads("a")
		k.writeLosing(backends.Nack{Leases: leasesOf(k.commit(k.claimBatch(me, 1, 0, p)).Claims[0].Jobs...)}, 0)
		k.claimOne()
	},
	"DeadWhenOutOfAttempts": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		var want []backends.Failure
		for i, text := range []string{"first", "", "third"} {
			j := k.nackOne(backends.Nack{Error: text, HasDelay: true})
			if i > 0 && j.LastError != want[i-1].Message {
				k.Errorf("attempt %d came with the last error %q, want %q", i+1, j.LastError, want[i-1].Message)
			}
			want = append(want, backends.Failure{Attempt: i + 1, Cause: backends.CauseNacked, Message: text})
		}
		k.wantState(id, backends.StateDead)
		k.wantFailures(id, want...)
		k.wantNoneReady()
	},
	"JobsOwnMaxAttempts": func(k *kit) {
		id := k.enqueue(backends.NewJob{Queue: "q", MaxAttempts: 1})[0]
		if j := k.loseOne(backends.CauseDisconnected); j.MaxAttempts != 1 {
			k.Errorf("max_attempts %d, want the job's 1", j.MaxAttempts)
		}
		k.wantState(id, backends.StateDead)
	},
	"NackDeadSkipsRemainingAttempts": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		k.nackOne(backends.Nack{Error: "hopeless", Dead: true})
		k.wantState(id, backends.StateDead)
		k.wantFailures(id, backends.Failure{Attempt: 1, Cause: backends.CauseNacked, Message: "hopeless"})
		if v := k.view(id); v.FinishedAt.IsZero() || v.Worker != "" {
			k.Errorf("%+v", v)
		}
	},
	"NackWithADelay": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		k.nackOne(backends.Nack{Delay: time.Minute, HasDelay: true})
		k.wantDueIn(id, time.Minute)
		if j := k.claimOne(); j.Attempt != 2 {
			k.Errorf("attempt %d, want 2", j.Attempt)
		}
	},
	"SnoozeUsesNoAttempt": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		for range 5 { // more often than max_attempts
			if j := k.nackOne(backends.Nack{Error: "not now", Snooze: true}); j.Attempt != 1 || j.LastError != "" {
				k.Fatalf("attempt %d, last error %q; want attempt 1 and none", j.Attempt, j.LastError)
			}
			k.AdvanceClock(time.Hour)
			k.maintain(backends.Maintenance{})
		}
		k.wantFailures(id)
		k.nackOne(backends.Nack{Error: "now", HasDelay: true})
		k.nackOne(backends.Nack{HasDelay: true})
		k.nackOne(backends.Nack{Snooze: true})
		k.wantDueIn(id, 2*time.Second) // the back-off of the two attempts before it
	},
	"SnoozesInARowBackOff": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		snooze := func(want ...time.Duration) {
			k.Helper()
			for _, d := range want {
				k.nackOne(backends.Nack{Snooze: true})
				k.wantDueIn(id, d)
			}
		}
		snooze(time.Second, 2*time.Second)
		k.writeLosing(backends.Release{Leases: leasesOf(k.claimOne()), Uncounted: true}, 0) // a release is not a snooze
		k.nackOne(backends.Nack{Snooze: true, HasDelay: true})                              // a snooze with its own delay
		snooze(4*time.Second, 5*time.Second, 5*time.Second)                                 // up to the maximum
		k.nackOne(backends.Nack{HasDelay: true})                                            // an attempt ends the row of snoozes
		snooze(time.Second, 2*time.Second)
		k.loseOne(backends.CauseDisconnected) // a loss ends it too; a first loss is ready at once
		k.wantState(id, backends.StateReady)
		snooze(2*time.Second, 4*time.Second) // starts at the back-off of the two attempts
	},
	"FirstLossIsReadyAtOnceSecondBacksOff": func(k *kit) {
		p := policy("q")
		p.MaxAttempts = 9
		id := k.enqueuePayloads("a")[0]
		lose := func() {
			k.Helper()
			k.writeLosing(backends.Release{Leases: leasesOf(k.onlyJob(k.claimBatch(me, 1, 0, p))), Cause: backends.CauseDisconnected}, 0)
		}
		lose()
		k.wantState(id, backends.StateReady)
		lose()
		k.wantDueIn(id, 2*time.Second)
		k.writeLosing(backends.Nack{Leases: leasesOf(k.commit(k.claimBatch(me, 1, 0, p)).Claims[0].Jobs...), HasDelay: true}, 0) // ends the row of losses
		lose()
		k.wantState(id, backends.StateReady)
		lose()
		k.wantDueIn(id, 5*time.Second)
	},
	"UncountedReleaseDoesNotResetLosses": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		k.loseOne(backends.CauseSidecarLost)
		k.writeLosing(backends.Release{Leases: leasesOf(k.claimOne()), Uncounted: true}, 0)
		k.nackOne(backends.Nack{Snooze: true, HasDelay: true})
		k.loseOne(backends.CauseDisconnected)
		k.wantState(id, backends.StateScheduled)
	},
	"TimeoutBacksOffTheFirstTime": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		k.loseOne(backends.CauseTimedOut)
		k.wantDueIn(id, time.Second)
	},
	"EveryCauseIsKept": func(k *kit) {
		p := policy("q")
		p.MaxAttempts, p.Backoff, p.BackoffMax = 9, 0, 0
		id := k.enqueuePayloads("a")[0]
		var want []backends.Failure
		for i, c := range []backends.Cause{backends.CauseDisconnected, backends.CauseTimedOut, backends.CauseLeaseEnded, backends.CauseSidecarLost} {
			jobs := k.commit(k.claimBatch(me, 1, 0, p)).Claims[0].Jobs
			k.writeLosing(backends.Release{Leases: leasesOf(jobs...), Cause: c, Message: "m\x7fé"}, 0)
			want = append(want, backends.Failure{Attempt: i + 1, Cause: c, Message: "m\x7fé"})
		}
		k.wantFailures(id, want...)
	},
	"ClaimsPolicyApplies": func(k *kit) { // not the policy of the sidecar that reaps
		p := policy("q")
		p.MaxAttempts = 1
		id := k.enqueuePayloads("a")[0]
		k.commit(k.claimBatch(me, 1, time.Second, p))
		k.AdvanceClock(time.Minute)
		k.maintain(backends.Maintenance{})
		k.wantState(id, backends.StateDead)
		k.wantFailures(id, backends.Failure{Attempt: 1, Cause: backends.CauseLeaseEnded})
	},
	"FencesGrow": func(k *kit) {
		k.enqueuePayloads("a")
		last := int64(0)
		for i := range 5 {
			j := k.claimOne()
			if j.Fence <= last || j.Fence > 1<<53-1 {
				k.Fatalf("fence %d after %d", j.Fence, last)
			}
			last = j.Fence
			k.AdvanceClock(-time.Minute) // fences grow even if the clock goes back
			k.writeLosing(backends.Release{Leases: leasesOf(j), Uncounted: i%2 == 0, Cause: backends.CauseDisconnected}, 0)
			k.AdvanceClock(2 * time.Minute)
			k.maintain(backends.Maintenance{})
			if i == 2 {
				k.AdvanceClock(-3 * time.Minute)
			}
			if k.stats().Dead == 1 {
				return
			}
		}
	},
}
