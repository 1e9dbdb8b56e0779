package backendtest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// expires reports whether jobs of the engine can expire. If they can't, the error has the reason.
func (k *kit) expires() bool {
	k.Helper()
	r, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{within("p", "", time.Hour)}}}})
	u, ok := errors.AsType[*backends.UnsupportedError](err)
	switch {
	case ok && (!u.NoExpiry || u.Queue != "p"):
		k.Fatalf("an engine whose jobs don't expire answers %v", err)
	case err != nil && !ok:
		k.Fatal(err)
	case !ok:
		k.operate(backends.Command{Kind: backends.Delete, Queue: "p", IDs: []string{r.Writes[0].Stored[0].ID}}, 1, false)
	}
	return !ok
}

// within is a job that has to start within a time.
func within(queue, payload string, d time.Duration) backends.NewJob {
	return backends.NewJob{Queue: queue, Payload: []byte(payload), Expiry: backends.Expiry{StartWithin: d, RetainDead: 2 * time.Hour}}
}

// now returns the time of the database's clock.
func (k *kit) now() time.Time {
	k.Helper()
	return k.views(backends.Peek{Queue: "clock", IDs: k.enqueue(backends.NewJob{Queue: "clock"}), Max: 1})[0].EnqueuedAt
}

// minute is a job of "q" that has to start within a minute.
func minute(payload string) backends.NewJob { return within("q", payload, time.Minute) }

func removed(j backends.NewJob) backends.NewJob {
	j.Expiry.Remove = true
	return j
}

// wantExpired checks that jobs are dead because their time to start is over, and that many attempts had counted.
func (k *kit) wantExpired(attempts int, ids ...string) {
	k.Helper()
	for _, id := range ids {
		v := k.view(id)
		if v == nil || v.State != backends.StateDead || v.FinishedAt.IsZero() || !v.RunAt.IsZero() || v.Attempt != attempts {
			k.Fatalf("job %s: %+v, want dead with %d attempts", id, v, attempts)
		}
		f := v.Failures[len(v.Failures)-1]
		if f.Cause != backends.CauseExpired || f.Message != backends.ExpiredMessage || f.Attempt != attempts || f.At.IsZero() {
			k.Fatalf("job %s failed last with %+v", id, f)
		}
	}
}

// expireAll runs maintenance, which must end that many jobs.
func (k *kit) expireAll(n int) backends.MaintenanceResult {
	k.Helper()
	r := k.maintain(backends.Maintenance{})
	if r.Expired != n {
		k.Fatalf("%d jobs expired, want %d: %+v", r.Expired, n, r)
	}
	return r
}

var expiryTests = map[string]func(*kit){
	"ClaimEndsWhatItMeets": func(k *kit) {
		before := minute("before")
		before.Expiry = backends.Expiry{StartBefore: k.now().Add(time.Minute)}
		ids := k.enqueue(minute("a"), minute("b"), removed(minute("gone")), before, within("q", "later", time.Hour), backends.NewJob{Queue: "q", Payload: []byte("never")})
		k.wantJobs(k.claim(1), "a") // in time
		if v := k.view(ids[1]); v.StartBefore.Sub(v.EnqueuedAt).Round(time.Second) != time.Minute {
			k.Errorf("job b must start before %v, and was enqueued at %v", v.StartBefore, v.EnqueuedAt)
		}
		k.AdvanceClock(2 * time.Minute)
		r := k.commit(k.claimBatch(me, 1, 0, policy("q"))).Claims[0]
		k.wantJobs(r.Jobs, "later")
		k.wantFailed(r.Failed, backends.FailedCount{Queue: "q", Cause: backends.CauseExpired, Dead: true, Jobs: 2}, backends.FailedCount{Queue: "q", Cause: backends.CauseExpired, Jobs: 1})
		k.wantExpired(0, ids[1], ids[3])
		k.wantState(ids[2], backends.StateDeleted)
		k.expireAll(0)
		if j := k.claimOne(); j.StartWithin != 0 {
			k.Errorf("a job without a limit has %v to start", j.StartWithin)
		}
		k.wantPruned(25*time.Hour, 2) // by the policy of the claim
	},
	"MaintenanceEndsTheRest": func(k *kit) {
		delayed := minute("delayed")
		delayed.Delay = time.Hour // so it expires in an hour and a minute
		late := minute("late")
		late.Delay, late.Expiry = time.Hour, backends.Expiry{StartBefore: k.now().Add(time.Minute)}
		ids := k.enqueue(minute("a"), removed(minute("b")), late, delayed, minute("claimed first"))
		k.operate(backends.Command{Kind: backends.Pause, Queue: "q"}, 0, false)
		if r := k.expireAll(0); r.Next <= 0 || r.Next > time.Minute {
			k.Errorf("maintenance is due in %v, want less than a minute", r.Next)
		}
		k.AdvanceClock(time.Minute)
		r := k.expireAll(4)
		k.wantFailed(r.Failed, backends.FailedCount{Queue: "q", Cause: backends.CauseExpired, Dead: true, Jobs: 3}, backends.FailedCount{Queue: "q", Cause: backends.CauseExpired, Jobs: 1})
		k.wantExpired(0, ids[0], ids[2], ids[4])
		k.wantState(ids[1], backends.StateDeleted)
		k.wantState(ids[3], backends.StateScheduled)
		k.AdvanceClock(time.Hour)
		k.maintain(backends.Maintenance{}) // it is ready for a minute at least, or over already
		k.AdvanceClock(2 * time.Minute)
		k.maintain(backends.Maintenance{})
		k.wantExpired(0, ids[3])
		k.wantPruned(150*time.Minute, 3) // by the retention that the enqueue stored; late has none
	},
	"AClaimedJobRunsOn": func(k *kit) {
		ids := k.enqueue(minute("acked"), minute("nacked"), minute("snoozed"), minute("lost"), minute("reclaimed"))
		jobs := k.claim(5)
		k.AdvanceClock(2 * time.Minute)
		k.expireAll(0)
		k.writeLosing(backends.Extend{Leases: leasesOf(jobs...)}, 0)
		k.writeLosing(backends.Ack{Leases: leasesOf(jobs[0])}, 0)
		k.wantState(ids[0], backends.StateDeleted)
		k.writeLosing(backends.Nack{Leases: leasesOf(jobs[1]), Error: "x", Delay: time.Hour, HasDelay: true}, 0)
		k.writeLosing(backends.Nack{Leases: leasesOf(jobs[2]), Snooze: true}, 0)
		k.writeLosing(backends.Release{Leases: leasesOf(jobs[3]), Cause: backends.CauseDisconnected}, 0)
		k.operate(backends.Command{Kind: backends.Reclaim, Queue: "q", IDs: ids[4:]}, 1, true)
		k.wantNoneReady() // the claim ends those that are ready
		k.expireAll(2)    // and maintenance those in their back-off
		k.wantExpired(1, ids[1], ids[3])
		k.wantExpired(0, ids[2], ids[4])
	},
	"RetryBeforeTheTimeStarts": func(k *kit) {
		id := k.enqueue(minute("a"))[0]
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claimOne()), HasDelay: true}, 0)
		k.AdvanceClock(time.Second)
		j := k.claimOne()
		if j.Attempt != 2 || j.StartWithin <= 0 || j.StartWithin > time.Minute {
			k.Errorf("claimed %+v", j)
		}
		k.writeLosing(backends.Nack{Leases: leasesOf(j), HasDelay: true}, 0)
		k.AdvanceClock(time.Minute)
		k.expireAll(1)
		k.wantExpired(2, id)
	},
	"PrefetchedJobsKnowTheirTime": func(k *kit) {
		id := k.enqueue(minute("a"))[0]
		k.AdvanceClock(20 * time.Second)
		j := k.prefetchOne(me)
		if j.StartWithin <= 10*time.Second || j.StartWithin > 40*time.Second {
			k.Errorf("the job has %v to start, want 40 s at most", j.StartWithin)
		}
		k.AdvanceClock(time.Minute)
		k.expireAll(0)
		k.writeLosing(backends.Release{Leases: leasesOf(j), Owner: me, Uncounted: true}, 0) // no worker got it in time
		k.wantNoneReady()
		k.wantExpired(0, id)
	},
	"OfADeadSidecar": func(k *kit) {
		k.join(k, other)
		ids := k.enqueue(minute("claimed"), minute("prefetched"))
		k.commit(k.claimBatch(other, 1, 0, policy("q")))
		k.prefetchOne(other)
		k.AdvanceClock(time.Minute)
		if r := k.stopAndEvict(other); r.Reaped[backends.CauseSidecarLost] != 2 {
			k.Errorf("reaped %+v", r.Reaped)
		}
		k.wantNoneReady()
		k.wantExpired(1, ids[0])
		k.wantExpired(0, ids[1])
	},
	"ReapedJobsExpire": func(k *kit) {
		id := k.enqueue(minute("a"))[0]
		k.claimTimed(2*time.Minute, 2*time.Minute)
		k.AdvanceClock(5 * time.Minute)
		k.maintain(backends.Maintenance{})
		k.maintain(backends.Maintenance{})
		k.wantExpired(1, id)
	},
	"RetriedByAnOperatorStarts": func(k *kit) {
		ids := k.enqueue(minute("a"), minute("b"))
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claim(1)...), Dead: true}, 0)
		k.AdvanceClock(time.Minute)
		k.expireAll(1)
		k.wantExpired(0, ids[1])
		k.cancelled(backends.Command{Kind: backends.Retry, Queue: "q", IDs: ids}, 2)
		k.AdvanceClock(time.Hour)
		k.expireAll(0)
		jobs := k.claim(3)
		k.wantJobs(jobs, "a", "b")
		if jobs[1].Attempt != 1 || jobs[1].LastError != backends.ExpiredMessage || jobs[1].StartWithin != 0 || !k.view(ids[1]).StartBefore.IsZero() {
			k.Errorf("retried: %+v", jobs[1])
		}
	},
	"CommandsOnJobsThatExpire": func(k *kit) {
		ids := k.enqueue(minute("later"), minute("cancelled"), minute("deleted"))
		delay := time.Hour
		k.cancelled(backends.Command{Kind: backends.Change, Queue: "q", IDs: ids[:1], Delay: &delay}, 1)
		k.cancelled(cancelOf(ids[1]), 1)
		k.cancelled(backends.Command{Kind: backends.Delete, Queue: "q", IDs: ids[2:]}, 1)
		k.AdvanceClock(time.Minute)
		k.expireAll(1)
		k.wantExpired(0, ids[0])
		k.wantCancelled(0, ids[1])
	},
	"KeysEndWithTheirJobs": func(k *kit) {
		for name, end := range map[string]func(){"claim": k.wantNoneReady, "maintenance": func() { k.maintain(backends.Maintenance{}) }} {
			dead, gone := minute("a"), removed(minute("b"))
			dead.Key, gone.Key, dead.KeyTTL, gone.KeyTTL = name+"a", name+"b", 5*keyTTL, 5*keyTTL
			ids := k.enqueue(dead, gone)
			k.AdvanceClock(time.Minute)
			end()
			k.wantExpired(0, ids[0])
			k.enqueueKey(name+"a", ids[0], backends.StateDead)
			k.AdvanceClock(time.Second)
			k.maintain(backends.Maintenance{Prune: true}) // a claim can't delete a job that has a key
			k.wantState(ids[1], backends.StateDeleted)
			k.AdvanceClock(10 * keyTTL)
			k.maintain(backends.Maintenance{Prune: true})
			k.enqueueKey(name+"b", "", "")
			k.writeLosing(backends.Ack{Leases: leasesOf(k.claim(9)...)}, 0)
		}
	},
	"Groups": func(k *kit) {
		if !k.hasGroups() {
			return
		}
		expiring := func(payload string) backends.NewJob {
			j := member(payload)
			j.Expiry.StartWithin = time.Minute
			return j
		}
		ids := k.enqueue(member("a1"), expiring("a2"), removed(expiring("a3")), member("a4"), expiring("b1"), member("b2"), removed(expiring("c1")), member("c2"))
		k.maintain(backends.Maintenance{})
		first := k.commit(k.claimBatch(me, 1, 0, policy("q"))).Claims[0].Jobs
		k.wantJobs(first, "a1")
		k.AdvanceClock(time.Minute)
		k.expireAll(4) // two of them are blocked, two are ready
		k.wantExpired(0, ids[1], ids[4])
		k.maintain(backends.Maintenance{})
		k.write(backends.Ack{Leases: leasesOf(first...)})
		jobs := k.claim(9)
		slices.SortFunc(jobs, func(a, b backends.Job) int { return slices.Compare(a.Payload, b.Payload) })
		k.wantJobs(jobs, "a4", "b2", "c2")
		k.write(backends.Ack{Leases: leasesOf(jobs...)})
		for _, end := range []func(backends.NewJob) backends.NewJob{func(j backends.NewJob) backends.NewJob { return j }, removed} {
			k.enqueue(end(expiring("d1")), member("d2"))
			k.maintain(backends.Maintenance{})
			k.AdvanceClock(time.Minute)
			k.wantNoneReady() // a claim frees the slot
			k.maintain(backends.Maintenance{})
			jobs := k.claim(2)
			k.wantJobs(jobs, "d2")
			k.write(backends.Ack{Leases: leasesOf(jobs...)})
		}
	},
	"ABacklogIsBounded": func(k *kit) {
		var jobs []backends.NewJob
		for range 250 {
			jobs = append(jobs, minute("old"))
		}
		k.enqueue(append(jobs, backends.NewJob{Queue: "q", Payload: []byte("new")})...)
		k.AdvanceClock(time.Minute)
		r := k.commit(k.claimBatch(me, 1, 0, policy("q"))).Claims[0]
		if !r.More || len(r.Jobs) > 0 || r.Failed.Dead() < 50 || r.Failed.Dead() > 200 {
			k.Errorf("one claim ended %d jobs, more: %v", r.Failed.Dead(), r.More)
		}
		n := r.Failed.Dead()
		for m := (backends.MaintenanceResult{More: true}); m.More; {
			m = k.maintain(backends.Maintenance{})
			n += m.Expired
		}
		if st := k.stats(); n != 250 || st.Dead != 250 {
			k.Errorf("%d jobs expired: %+v", n, st)
		}
		k.wantJobs(k.claim(2), "new")
	},
	"NewestFirst": func(k *kit) {
		lifo := policy("q")
		lifo.LIFO = true
		k.enqueue(backends.NewJob{Queue: "q", Payload: []byte("old")}, minute("a"), removed(minute("b")))
		k.AdvanceClock(time.Minute)
		k.wantJobs(k.commit(k.claimBatch(me, 2, 0, lifo)).Claims[0].Jobs, "old")
	},
	"RacesClaimsOfAnotherHost": func(k *kit) {
		const n = 40
		for i := range n {
			k.enqueue(minute(fmt.Sprint(i)))
		}
		second := k.OpenAnother()
		k.join(second, other)
		var claimed []backends.Job
		expired := 0
		var g sync.WaitGroup
		g.Go(func() {
			for i := range n {
				if i == n/2 {
					k.AdvanceClock(time.Minute)
				}
				r, err := second.Commit(k.Context(), k.claimBatch(other, 1, 0, policy("q")))
				if err != nil {
					k.Error(err)
					return
				}
				claimed = append(claimed, r.Claims[0].Jobs...)
				expired += r.Claims[0].Failed.Dead()
			}
		})
		ended := 0
		g.Go(func() {
			for range n {
				r, err := k.Maintain(k.Context(), backends.Maintenance{Limit: 3})
				if ended += r.Expired; err != nil {
					k.Error(err)
				}
			}
		})
		g.Wait()
		k.maintain(backends.Maintenance{})
		if st := k.stats(); len(claimed) != n/2 || st.Claimed != n/2 || st.Dead != n/2 || st.Ready != 0 {
			k.Errorf("%d jobs were claimed before their time was over: %+v; claims ended %d and maintenance %d", len(claimed), st, expired, ended)
		}
	},
	"APlainINSERT": func(k *kit) {
		if k.InsertRow == nil {
			return
		}
		for _, bad := range []string{"'sometime'"} {
			if err := k.InsertRow("on_expiry", bad, false); err == nil {
				k.Errorf("on_expiry %s is stored", bad)
			}
		}
		const past = "'2001-02-03 04:05:06'"
		for n, end := range []func(){k.wantNoneReady, func() {}} {
			if err := k.InsertRow("start_before", past, false); err != nil {
				k.Fatal(err)
			}
			end()
			k.maintain(backends.Maintenance{}) // it stores when the job expires, if the engine has no index for that
			k.maintain(backends.Maintenance{})
			if st := k.stats(); st.Dead != int64(n+1) || st.Ready != 0 {
				k.Errorf("%+v, want %d dead jobs", st, n+1)
			}
		}
		if err := k.InsertRow("start_before", "'2999-02-03 04:05:06'", false); err != nil {
			k.Fatal(err)
		}
		k.AdvanceClock(time.Minute) // the server's own clock has stored the time at which it is ready
		k.maintain(backends.Maintenance{})
		if jobs := k.claim(2); len(jobs) != 1 || jobs[0].StartWithin < time.Hour {
			k.Errorf("claimed %+v, want a job that has to start until 2999", jobs)
		}
	},
}
