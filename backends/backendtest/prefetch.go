package backendtest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// prefetchBatch is claimBatch with slots that prefetch.
func (k *kit) prefetchBatch(sidecar backends.Identity, n int, p backends.Policy) backends.CommitContent {
	b := k.claimBatch(sidecar, n, 0, p)
	for i := range b.Claims[0].Slots {
		b.Claims[0].Slots[i].Prefetch = true
	}
	return b
}

// prefetchOne prefetches the only ready job of "q".
func (k *kit) prefetchOne(sidecar backends.Identity) backends.Job {
	k.Helper()
	return k.onlyJob(k.prefetchBatch(sidecar, 1, policy("q")))
}

func deliveryOf(worker string, jobs ...backends.Job) (d backends.Deliver) {
	for _, j := range jobs {
		d.Deliveries = append(d.Deliveries, backends.Delivery{Lease: j.Lease(), Worker: worker})
	}
	return d
}

// handedOut records a hand-out that was that long ago.
func handedOut(j backends.Job, ago time.Duration) backends.Deliver {
	return backends.Deliver{Deliveries: []backends.Delivery{{Lease: j.Lease(), Worker: "bob", Ago: ago}}}
}

// wantAttempts checks how many attempts a job has used.
func (k *kit) wantAttempts(id string, want int) {
	k.Helper()
	if v := k.view(id); v == nil || v.Attempt != want {
		k.Fatalf("job %s: %+v, want %d attempts", id, v, want)
	}
}

// stopAndEvict lets the sidecar miss its heartbeats and evicts it.
func (k *kit) stopAndEvict(sidecar backends.Identity) backends.MaintenanceResult {
	k.Helper()
	k.AdvanceClock(sidecarTimeout + time.Second)
	p := k.peer(sidecar)
	if p == nil {
		k.Fatalf("sidecar %d is not listed", sidecar)
	}
	return k.evict(p)
}

// loseWithSidecar lets a new sidecar prefetch the only ready job, then stops and evicts that
// sidecar. It checks the attempt number of the prefetched job.
func (k *kit) loseWithSidecar(attempt int) {
	k.Helper()
	sidecar := backends.Identity(1000 + k.lastToken.Add(1))
	k.join(k, sidecar)
	if j := k.prefetchOne(sidecar); j.Attempt != attempt {
		k.Fatalf("prefetched with attempt %d, want %d", j.Attempt, attempt)
	}
	if r := k.stopAndEvict(sidecar); r.Reaped[backends.CauseSidecarLost] != 1 || len(r.MadeReady) > 1 {
		k.Fatalf("%+v, want one job reaped", r)
	}
}

var prefetchTests = map[string]func(*kit){
	"IsAnnounced": func(k *kit) {
		if !k.Info().Prefetch {
			k.Error("Info().Prefetch is false")
		}
	},
	"PrefetchUsesNoAttempt": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		j := k.prefetchOne(me) // no worker has it yet, although its slot names one
		if j.Attempt != 1 || j.MaxAttempts != 3 || j.Fence == 0 || string(j.Payload) != "a" {
			k.Errorf("claimed %+v", j)
		}
		if v := k.view(id); v.State != backends.StateClaimed || v.Attempt != 0 || v.Worker != "" || v.ClaimedAt.IsZero() {
			k.Errorf("shown as %+v", v)
		}
		if st := k.stats(); st.Claimed != 1 || st.Ready != 0 {
			k.Errorf("%+v", st)
		}
		if h := k.claimedBy(k, me); len(h) != 1 || h[0] != (backends.ClaimedJob{Lease: j.Lease(), Queue: "q"}) {
			k.Errorf("claimed by me: %+v", h)
		}
		k.wantNoneReady()
	},
	"MixedSlotsInOneClaim": func(k *kit) {
		ids := k.enqueuePayloads("a", "b", "c")
		b := k.prefetchBatch(me, 3, policy("q"))
		b.Claims[0].Slots[1].Prefetch = false
		k.wantJobs(k.commit(b).Claims[0].Jobs, "a", "b", "c")
		for i, want := range []int{0, 1, 0} {
			k.wantAttempts(ids[i], want)
		}
		if v := k.view(ids[1]); v.Worker != "w" {
			k.Errorf("worker %q, want w", v.Worker)
		}
	},
	"DeliveryCountsTheAttempt": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		j := k.prefetchOne(me)
		for range 2 { // a client repeats it after an unknown outcome
			if r := k.writeLosing(deliveryOf("bob", j), 0); len(r.MadeReady) != 0 {
				k.Errorf("made ready: %v", r.MadeReady)
			}
			if v := k.view(id); v.Attempt != 1 || v.Worker != "bob" || v.State != backends.StateClaimed {
				k.Fatalf("delivered, it is shown as %+v", v)
			}
		}
		k.writeLosing(backends.Nack{Leases: leasesOf(j), Error: "no", HasDelay: true}, 0)
		k.wantFailures(id, backends.Failure{Attempt: 1, Cause: backends.CauseNacked, Message: "no"})
		if j := k.prefetchOne(me); j.Attempt != 2 || j.LastError != "no" {
			k.Errorf("the next is %+v", j)
		}
	},
	"LateDeliveryKeepsTheWorker": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		k.join(k, other)
		j := k.prefetchOne(me)
		k.writeLosing(backends.Extend{Leases: leasesOf(j), Bind: other, Worker: "new"}, 0)
		k.writeLosing(deliveryOf("old", j), 0)
		if v := k.view(id); v.Worker != "new" || v.Attempt != 1 {
			k.Errorf("%+v", v)
		}
	},
	"LostLeasesInADelivery": func(k *kit) {
		k.enqueuePayloads("a", "b", "c")
		jobs := k.commit(k.prefetchBatch(me, 3, policy("q"))).Claims[0].Jobs
		k.writeLosing(backends.Ack{Leases: leasesOf(jobs[0])}, 0)
		k.writeLosing(backends.Release{Leases: leasesOf(jobs[1]), Uncounted: true}, 0)
		again := k.prefetchOne(me)
		stranger := backends.Job{ID: "nonsense", Token: k.token(me)}
		r := k.writeLosing(deliveryOf("bob", jobs[0], jobs[1], stranger, jobs[2]), 3)
		if want := append(leasesOf(jobs[0], jobs[1]), stranger.Lease()); !slices.Equal(r.Lost, want) {
			k.Errorf("lost %v, want %v", r.Lost, want)
		}
		k.wantAttempts(again.ID, 0)
		k.wantAttempts(jobs[2].ID, 1)
		k.writeLosing(backends.Ack{Leases: leasesOf(again, jobs[2])}, 0)
	},
	"SettleCountsAnUnrecordedDelivery": func(k *kit) {
		p := policy("q")
		p.RetainDone = time.Hour
		settles := map[backends.Cause]func(backends.Job) backends.Write{
			backends.CauseNacked: func(j backends.Job) backends.Write {
				return backends.Nack{Leases: leasesOf(j), Error: "no", HasDelay: true}
			},
			backends.CauseDisconnected: func(j backends.Job) backends.Write {
				return backends.Release{Leases: leasesOf(j), Cause: backends.CauseDisconnected, Message: "no"}
			},
		}
		for cause, w := range settles {
			id := k.enqueuePayloads("a")[0]
			k.writeLosing(w(k.onlyJob(k.prefetchBatch(me, 1, p))), 0)
			k.wantFailures(id, backends.Failure{Attempt: 1, Cause: cause, Message: "no"})
			k.wantAttempts(id, 1)
			j := k.onlyJob(k.prefetchBatch(me, 1, p))
			if j.Attempt != 2 {
				k.Errorf("after %s: attempt %d, want 2", cause, j.Attempt)
			}
			k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0)
			k.wantAttempts(id, 2)
			k.wantState(id, backends.StateDone)
		}
	},
	"UnrecordedDeliveriesUseUpAttempts": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		for i := range 3 {
			k.wantAttempts(id, i)
			k.writeLosing(backends.Release{Leases: leasesOf(k.prefetchOne(me)), Cause: backends.CauseDisconnected}, 0)
			if i == 1 { // the second loss in a row
				k.wantDueIn(id, 2*time.Second)
			}
		}
		k.wantState(id, backends.StateDead)
	},
	"UncountedReleaseLeavesNoTrace": func(k *kit) {
		ids := k.enqueuePayloads("a", "b")
		release := func(w backends.Write) {
			k.Helper()
			if r := k.writeLosing(w, 0); !slices.Equal(r.MadeReady, []string{"q"}) {
				k.Errorf("made ready: %v", r.MadeReady)
			}
			k.wantAttempts(ids[0], 0)
			k.wantFailures(ids[0])
		}
		prefetch := func() backends.Job {
			k.Helper()
			j := k.prefetchOne(me)
			if string(j.Payload) != "a" || j.Attempt != 1 {
				k.Fatalf("claimed %q, attempt %d; want a, attempt 1", j.Payload, j.Attempt)
			}
			return j
		}
		for range 4 { // more often than max_attempts
			release(backends.Release{Leases: leasesOf(prefetch()), Owner: me, Uncounted: true})
		}
		prefetch()
		k.operate(backends.Command{Kind: backends.Reclaim, Queue: "q", IDs: ids}, 1, true)
		k.wantAttempts(ids[0], 0)
		release(backends.Nack{Leases: leasesOf(prefetch()), Snooze: true, HasDelay: true})
		k.wantJobs(k.claim(2), "b", "a") // a nack gives a new position
	},
	"UndeliveredJobOfADeadSidecarUsesNoAttempt": func(k *kit) {
		ids := k.enqueuePayloads("a", "b")
		k.join(k, other)
		j := k.commit(k.prefetchBatch(other, 1, policy("q"))).Claims[0].Jobs[0]
		r := k.stopAndEvict(other)
		if r.Reaped[backends.CauseSidecarLost] != 1 || !slices.Equal(r.MadeReady, []string{"q"}) {
			k.Errorf("%+v, want one job reaped and q made ready", r)
		}
		k.wantFailures(ids[0])
		k.wantAttempts(ids[0], 0)
		k.writeLosing(deliveryOf("late", j), 1)
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 1)
		jobs := k.claim(2)
		k.wantJobs(jobs, "a", "b") // in its old position
		if jobs[0].Attempt != 1 {
			k.Errorf("attempt %d, want 1", jobs[0].Attempt)
		}
		k.writeLosing(backends.Release{Leases: leasesOf(jobs[0]), Cause: backends.CauseDisconnected}, 0)
		k.wantState(ids[0], backends.StateReady) // its first loss
	},
	"DeliveredJobOfADeadSidecarUsesAnAttempt": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		k.join(k, other)
		k.writeLosing(deliveryOf("bob", k.prefetchOne(other)), 0)
		k.stopAndEvict(other)
		k.wantFailures(id, backends.Failure{Attempt: 1, Cause: backends.CauseSidecarLost})
		k.wantAttempts(id, 1)
	},
	"JobThatKillsSidecarsUsesUpItsAttempts": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		for range 3 { // max_attempts times
			k.loseWithSidecar(1)
		}
		k.wantFailures(id)
		k.wantAttempts(id, 0)
		var want []backends.Failure
		for i := range 3 { // from now on every loss counts
			k.loseWithSidecar(i + 1)
			want = append(want, backends.Failure{Attempt: i + 1, Cause: backends.CauseSidecarLost})
			k.wantFailures(id, want...)
			if i == 1 {
				k.wantDueIn(id, 2*time.Second)
			}
		}
		k.wantState(id, backends.StateDead)
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, 1, true)
		k.prefetchOne(me)
		k.wantAttempts(id, 0) // the count of losses starts again
	},
	"CountedPrefetchIsStillUndelivered": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		for range 3 {
			k.loseWithSidecar(1)
		}
		j := k.prefetchOne(me)
		if v := k.view(id); v.Attempt != 1 || v.Worker != "" || j.Attempt != 1 {
			k.Fatalf("claimed with attempt %d, shown as %+v", j.Attempt, v)
		}
		k.writeLosing(backends.Release{Leases: leasesOf(j), Owner: me, Uncounted: true}, 0)
		k.wantAttempts(id, 0)
		j = k.prefetchOne(me)
		k.wantAttempts(id, 1) // still 1, not 2
		k.writeLosing(deliveryOf("bob", j), 0)
		if v := k.view(id); v.Attempt != 1 || v.Worker != "bob" {
			k.Errorf("%+v", v)
		}
		k.writeLosing(backends.Release{Leases: leasesOf(j), Uncounted: true}, 0)
		k.prefetchOne(me)
		k.wantAttempts(id, 0) // its sidecar outlived it
	},
	"DeliveryResetsPrefetchLosses": func(k *kit) {
		outlived := map[string]func(backends.Job){
			"delivered": func(j backends.Job) { k.writeLosing(deliveryOf("bob", j), 0) },
			"extended":  func(j backends.Job) { k.writeLosing(backends.Extend{Leases: leasesOf(j)}, 0) },
			"nacked":    func(j backends.Job) { k.writeLosing(backends.Nack{Leases: leasesOf(j), HasDelay: true}, 0) },
			"disconnected": func(j backends.Job) {
				k.writeLosing(backends.Release{Leases: leasesOf(j), Cause: backends.CauseDisconnected}, 0)
			},
		}
		for how, f := range outlived {
			id := k.enqueuePayloads("a")[0]
			k.loseWithSidecar(1)
			k.loseWithSidecar(1)
			j := k.prefetchOne(me)
			f(j)
			k.wantAttempts(id, 1)
			k.write(backends.Release{Leases: leasesOf(j), Uncounted: true}) // if it is still claimed
			before := k.view(id).Attempt
			k.loseWithSidecar(before + 1)
			k.loseWithSidecar(before + 1)
			k.loseWithSidecar(before + 1)
			if v := k.view(id); v.Attempt != before || v.State != backends.StateReady {
				k.Errorf("after it was %s: %+v, want three more losses uncounted", how, v)
			}
			k.operate(backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{id}}, 1, false)
		}
	},
	"ReleaseDoesNotResetPrefetchLosses": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		for range 3 {
			k.loseWithSidecar(1)
			if k.view(id).Attempt == 0 {
				k.writeLosing(backends.Release{Leases: leasesOf(k.prefetchOne(me)), Uncounted: true}, 0)
			}
		}
		k.prefetchOne(me)
		k.wantAttempts(id, 1)
	},
	"TimeLimitBeginsAtTheHandOut": func(k *kit) {
		for _, own := range []bool{false, true} { // the queue's limit, or the job's
			for _, counted := range []bool{false, true} { // the claim counts, because sidecars were lost with the job
				for _, begin := range map[string]struct {
					write func(j backends.Job) backends.Write
					left  time.Duration
				}{
					"just handed out":    {func(j backends.Job) backends.Write { return handedOut(j, 0) }, 10 * time.Second},
					"recorded 4 s later": {func(j backends.Job) backends.Write { return handedOut(j, 4*time.Second) }, 6 * time.Second},
					"recorded when over": {func(j backends.Job) backends.Write { return handedOut(j, time.Hour) }, 0},
					"checked":            {func(j backends.Job) backends.Write { return backends.Extend{Leases: leasesOf(j)} }, 10 * time.Second},
					"extended":           {func(j backends.Job) backends.Write { return backends.Extend{Leases: leasesOf(j), Lease: time.Hour} }, 10 * time.Second},
					"bound to another":   {func(j backends.Job) backends.Write { return backends.Extend{Leases: leasesOf(j), Bind: other} }, 10 * time.Second},
					"bound to its own": {func(j backends.Job) backends.Write {
						return backends.Extend{Leases: leasesOf(j), Bind: me, Worker: "w"}
					}, 10 * time.Second},
					"extended and longer": {func(j backends.Job) backends.Write {
						return backends.Extend{Leases: leasesOf(j), Lease: 3 * time.Second}
					}, 3 * time.Second},
				} {
					k.join(k, other)
					k.join(k, me)
					p := policy("q")
					p.MaxAttempts, p.Backoff, p.BackoffMax = 3, 0, 0
					n := backends.NewJob{Queue: "q", Payload: []byte("a")}
					if own {
						n.Timeout, p.Timeout = 10*time.Second, time.Second
					} else {
						p.Timeout = 10 * time.Second
					}
					id := k.enqueue(n)[0]
					if counted {
						for range 3 {
							k.loseWithSidecar(1)
						}
					}
					j := k.onlyJob(k.prefetchBatch(me, 1, p))
					k.wantReaped(20*time.Minute, "") // a stall of the sidecar or the database
					k.AdvanceClock(-10 * time.Minute)
					k.wantReaped(0, "") // after this, maintenance searches from the present time on
					k.writeLosing(begin.write(j), 0)
					if begin.left > 0 {
						k.wantReaped(begin.left-time.Second, "")
						k.writeLosing(handedOut(j, 0), 0) // a second record changes nothing
						k.AdvanceClock(time.Second)
					}
					cause := backends.CauseTimedOut
					if begin.left == 3*time.Second {
						cause = backends.CauseLeaseEnded
					}
					k.wantReaped(0, cause)
					k.wantFailures(id, backends.Failure{Attempt: 1, Cause: cause})
					k.wantAttempts(id, 1)
					k.operate(backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{id}}, 1, false)
				}
			}
		}
	},
	"TimeLimitsThatBeginTogether": func(k *kit) { // also beside writes that one statement can't carry out
		p := policy("q")
		p.Backoff, p.BackoffMax = 0, 0
		var jobs []backends.Job
		for i := range 3 {
			k.enqueuePayloads(fmt.Sprint(i))
			p.Timeout = time.Duration(i) * 10 * time.Second // the first has no limit
			jobs = append(jobs, k.onlyJob(k.prefetchBatch(me, 1, p)))
		}
		k.AdvanceClock(time.Hour)
		lost := jobs[2]
		lost.Token = k.token(me)
		r := k.commit(backends.CommitContent{Writes: []backends.Write{deliveryOf("old", lost), backends.Deliver{Deliveries: []backends.Delivery{
			{Lease: jobs[0].Lease(), Worker: "a", Ago: time.Second}, {Lease: jobs[1].Lease(), Worker: "b", Ago: 2 * time.Second}, {Lease: jobs[2].Lease(), Worker: "c"},
		}}}})
		if len(r.Writes[0].Lost) != 1 || len(r.Writes[1].Lost) != 0 {
			k.Errorf("%+v", r)
		}
		k.wantReaped(8*time.Second-time.Millisecond, "")
		k.wantReaped(time.Millisecond, backends.CauseTimedOut)
		k.wantReaped(12*time.Second-time.Millisecond, "")
		k.wantReaped(time.Millisecond, backends.CauseTimedOut)
		k.wantReaped(100*time.Hour, "")
		k.writeLosing(backends.Ack{Leases: leasesOf(jobs...)}, 2)
	},
	"ExtendCountsAsDelivery": func(k *kit) {
		k.join(k, other)
		for _, e := range []backends.Extend{{}, {Lease: time.Hour}, {Bind: other, Worker: "bob"}} {
			id := k.enqueuePayloads("a")[0]
			j := k.prefetchOne(me)
			e.Leases = leasesOf(j)
			for range 2 {
				k.writeLosing(e, 0)
				k.wantAttempts(id, 1)
			}
			k.writeLosing(backends.Nack{Leases: leasesOf(j), Dead: true}, 0)
			k.wantFailures(id, backends.Failure{Attempt: 1, Cause: backends.CauseNacked})
		}
	},
	"ConcurrentDeliveriesAndSettles": func(k *kit) {
		const n = 120
		k.enqueueMany(n)
		second := k.OpenAnother()
		jobs := k.commit(k.prefetchBatch(me, n, policy("q"))).Claims[0].Jobs
		backwards := slices.Clone(jobs)
		slices.Reverse(backwards)
		var wg sync.WaitGroup
		wg.Go(func() {
			for part := range slices.Chunk(backwards, 15) {
				if _, err := second.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{deliveryOf("bob", part...)}}); err != nil {
					k.Error(err)
				}
			}
		})
		wg.Go(func() {
			for part := range slices.Chunk(jobs, 20) {
				r, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(part...)}}})
				if err != nil || k.settled(k.Backend, leasesOf(part...), r.Writes[0]) != int64(len(part)) {
					k.Errorf("%+v, %v", r, err)
				}
			}
		})
		wg.Wait()
		if st := k.stats(); st.Claimed+st.Ready+st.Scheduled+st.Dead != 0 {
			k.Errorf("left over: %+v", st)
		}
	},
}
