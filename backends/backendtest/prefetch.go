package backendtest

import (
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// aheads is claims with slots that are for nobody yet.
func (k *kit) aheads(host backends.Identity, n int, p backends.Policy) backends.Batch {
	b := k.claims(host, n, 0, p)
	for i := range b.Claims[0].Slots {
		b.Claims[0].Slots[i].Prefetch = true
	}
	return b
}

// claimAhead claims the only ready job of "q" ahead.
func (k *kit) claimAhead(host backends.Identity) backends.Job {
	k.Helper()
	return k.claimAheadBy(host, policy("q"))
}

func (k *kit) claimAheadBy(host backends.Identity, p backends.Policy) backends.Job {
	k.Helper()
	jobs := k.commit(k.aheads(host, 1, p)).Claims[0].Jobs
	if len(jobs) != 1 {
		k.Fatalf("given %d jobs, want 1", len(jobs))
	}
	return jobs[0]
}

func handed(worker string, jobs ...backends.Job) (d backends.Deliver) {
	for _, j := range jobs {
		d.Deliveries = append(d.Deliveries, backends.Delivery{Lease: lease(j), Worker: worker})
	}
	return d
}

// charged checks how many deliveries a job was charged with.
func (k *kit) charged(id string, want int) {
	k.Helper()
	if v := k.view(id); v == nil || v.Attempt != want {
		k.Fatalf("job %s: %+v, want it charged %d times", id, v, want)
	}
}

// dies has a sidecar end without a word, and be given up.
func (k *kit) dies(host backends.Identity) backends.MaintenanceResult {
	k.Helper()
	k.Shift(hostLease + time.Second)
	p := k.peer(host)
	if p == nil {
		k.Fatalf("sidecar %d is not there", host)
	}
	return k.suspect(p)
}

// strands has a new sidecar claim the only ready job ahead and die with it, and
// checks which attempt it would have been.
func (k *kit) strands(attempt int) {
	k.Helper()
	host := backends.Identity(1000 + k.counted.Add(1))
	k.join(k, host)
	if j := k.claimAhead(host); j.Attempt != attempt {
		k.Fatalf("claimed ahead with attempt %d, want %d", j.Attempt, attempt)
	}
	if r := k.dies(host); r.Reaped[backends.CauseSidecarLost] != 1 || len(r.MadeReady) > 1 {
		k.Fatalf("%+v, want one job back", r)
	}
}

var ahead = map[string]func(*kit){
	"IsUnderstood": func(k *kit) {
		if !k.Info().Prefetch {
			k.Error("Info().Ahead is false")
		}
	},
	"ClaimedButNotCharged": func(k *kit) {
		id := k.put("a")[0]
		j := k.claimAhead(me) // its slot names a worker, who does not have it yet
		if j.Attempt != 1 || j.MaxAttempts != 3 || j.Fence == 0 || string(j.Payload) != "a" {
			k.Errorf("given %+v", j)
		}
		if v := k.view(id); v.State != backends.StateClaimed || v.Attempt != 0 || v.Worker != "" || v.ClaimedAt.IsZero() {
			k.Errorf("shown as %+v", v)
		}
		if st := k.stats(); st.Claimed != 1 || st.Ready != 0 {
			k.Errorf("%+v", st)
		}
		if h := k.held(k, me); len(h) != 1 || h[0] != (backends.ClaimedJob{Lease: lease(j), Queue: "q"}) {
			k.Errorf("held: %+v", h)
		}
		k.none()
	},
	"BesideOthersInOneClaim": func(k *kit) {
		ids := k.put("a", "b", "c")
		b := k.aheads(me, 3, policy("q"))
		b.Claims[0].Slots[1].Prefetch = false
		k.given(k.commit(b).Claims[0].Jobs, "a", "b", "c")
		for i, want := range []int{0, 1, 0} {
			k.charged(ids[i], want)
		}
		if v := k.view(ids[1]); v.Worker != "w" {
			k.Errorf("worker %q, want w", v.Worker)
		}
	},
	"ItsDeliveryCharges": func(k *kit) {
		id := k.put("a")[0]
		j := k.claimAhead(me)
		for range 2 { // an unknown outcome was tried again
			if r := k.settle(handed("bob", j), 0); len(r.MadeReady) != 0 {
				k.Errorf("freed %v", r.MadeReady)
			}
			if v := k.view(id); v.Attempt != 1 || v.Worker != "bob" || v.State != backends.StateClaimed {
				k.Fatalf("delivered, it is shown as %+v", v)
			}
		}
		k.settle(backends.Nack{Leases: each(j), Error: "no", HasDelay: true}, 0)
		k.failures(id, backends.Failure{Attempt: 1, Cause: backends.CauseNacked, Message: "no"})
		if j := k.claimAhead(me); j.Attempt != 2 || j.LastError != "no" {
			k.Errorf("the next is %+v", j)
		}
	},
	"ALateRecordKeepsTheWorker": func(k *kit) {
		id := k.put("a")[0]
		k.join(k, other)
		j := k.claimAhead(me)
		k.settle(backends.Extend{Leases: each(j), Bind: other, Worker: "new"}, 0)
		k.settle(handed("old", j), 0)
		if v := k.view(id); v.Worker != "new" || v.Attempt != 1 {
			k.Errorf("%+v", v)
		}
	},
	"LostLeasesInADelivery": func(k *kit) {
		k.put("a", "b", "c")
		jobs := k.commit(k.aheads(me, 3, policy("q"))).Claims[0].Jobs
		k.settle(backends.Ack{Leases: each(jobs[0])}, 0)
		k.settle(backends.Release{Leases: each(jobs[1]), Uncounted: true}, 0)
		again := k.claimAhead(me)
		stranger := backends.Job{ID: "nonsense", Token: k.token(me)}
		r := k.settle(handed("bob", jobs[0], jobs[1], stranger, jobs[2]), 3)
		if want := append(each(jobs[0], jobs[1]), lease(stranger)); !slices.Equal(r.Lost, want) {
			k.Errorf("lost %v, want %v", r.Lost, want)
		}
		k.charged(again.ID, 0)
		k.charged(jobs[2].ID, 1)
		k.settle(backends.Ack{Leases: each(again, jobs[2])}, 0)
	},
	"SettledBeforeItWasRecorded": func(k *kit) {
		p := policy("q")
		p.RetainDone = time.Hour
		settles := map[backends.Cause]func(backends.Job) backends.Write{
			backends.CauseNacked: func(j backends.Job) backends.Write {
				return backends.Nack{Leases: each(j), Error: "no", HasDelay: true}
			},
			backends.CauseDisconnected: func(j backends.Job) backends.Write {
				return backends.Release{Leases: each(j), Cause: backends.CauseDisconnected, Message: "no"}
			},
		}
		for cause, w := range settles {
			id := k.put("a")[0]
			k.settle(w(k.claimAheadBy(me, p)), 0)
			k.failures(id, backends.Failure{Attempt: 1, Cause: cause, Message: "no"})
			k.charged(id, 1)
			j := k.claimAheadBy(me, p)
			if j.Attempt != 2 {
				k.Errorf("after %s: attempt %d, want 2", cause, j.Attempt)
			}
			k.settle(backends.Ack{Leases: each(j)}, 0)
			k.charged(id, 2)
			k.state(id, backends.StateDone)
		}
	},
	"OutOfAttemptsUnrecorded": func(k *kit) {
		id := k.put("a")[0]
		for i := range 3 {
			k.charged(id, i)
			k.settle(backends.Release{Leases: each(k.claimAhead(me)), Cause: backends.CauseDisconnected}, 0)
			if i == 1 { // the second loss in a row
				k.dueIn(id, 2*time.Second)
			}
		}
		k.state(id, backends.StateDead)
	},
	"GivenBackItLeavesNoTrace": func(k *kit) {
		ids := k.put("a", "b")
		give := func(w backends.Write) {
			k.Helper()
			if r := k.settle(w, 0); !slices.Equal(r.MadeReady, []string{"q"}) {
				k.Errorf("freed %v", r.MadeReady)
			}
			k.charged(ids[0], 0)
			k.failures(ids[0])
		}
		one := func() backends.Job {
			k.Helper()
			j := k.claimAhead(me)
			if string(j.Payload) != "a" || j.Attempt != 1 {
				k.Fatalf("given %q, attempt %d; want a again, the first", j.Payload, j.Attempt)
			}
			return j
		}
		for range 4 { // more often than it has attempts
			give(backends.Release{Leases: each(one()), Owner: me, Uncounted: true})
		}
		one()
		k.command(backends.Command{Kind: backends.Reclaim, Queue: "q", IDs: ids}, 1, true)
		k.charged(ids[0], 0)
		give(backends.Nack{Leases: each(one()), Snooze: true, HasDelay: true})
		k.given(k.claim(2), "b", "a") // a nack gives a new position
	},
	"LostWithItsSidecar": func(k *kit) {
		ids := k.put("a", "b")
		k.join(k, other)
		j := k.commit(k.aheads(other, 1, policy("q"))).Claims[0].Jobs[0]
		r := k.dies(other)
		if r.Reaped[backends.CauseSidecarLost] != 1 || !slices.Equal(r.MadeReady, []string{"q"}) {
			k.Errorf("%+v, want one reaped and q freed", r)
		}
		k.failures(ids[0])
		k.charged(ids[0], 0)
		k.settle(handed("late", j), 1)
		k.settle(backends.Ack{Leases: each(j)}, 1)
		jobs := k.claim(2)
		k.given(jobs, "a", "b") // in its old position
		if jobs[0].Attempt != 1 {
			k.Errorf("attempt %d, want 1", jobs[0].Attempt)
		}
		k.settle(backends.Release{Leases: each(jobs[0]), Cause: backends.CauseDisconnected}, 0)
		k.state(ids[0], backends.StateReady) // its first loss
	},
	"LostWithItsSidecarOnceDelivered": func(k *kit) {
		id := k.put("a")[0]
		k.join(k, other)
		k.settle(handed("bob", k.claimAhead(other)), 0)
		k.dies(other)
		k.failures(id, backends.Failure{Attempt: 1, Cause: backends.CauseSidecarLost})
		k.charged(id, 1)
	},
	"WhatKillsSidecarsIsCharged": func(k *kit) {
		id := k.put("a")[0]
		for range 3 { // as often as it may be tried
			k.strands(1)
		}
		k.failures(id)
		k.charged(id, 0)
		var want []backends.Failure
		for i := range 3 { // from then on
			k.strands(i + 1)
			want = append(want, backends.Failure{Attempt: i + 1, Cause: backends.CauseSidecarLost})
			k.failures(id, want...)
			if i == 1 {
				k.dueIn(id, 2*time.Second)
			}
		}
		k.state(id, backends.StateDead)
		k.command(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, 1, true)
		k.claimAhead(me)
		k.charged(id, 0) // it begins anew
	},
	"AChargedClaimAheadIsOneToo": func(k *kit) {
		id := k.put("a")[0]
		for range 3 {
			k.strands(1)
		}
		j := k.claimAhead(me)
		if v := k.view(id); v.Attempt != 1 || v.Worker != "" || j.Attempt != 1 {
			k.Fatalf("given attempt %d, shown as %+v", j.Attempt, v)
		}
		k.settle(backends.Release{Leases: each(j), Owner: me, Uncounted: true}, 0)
		k.charged(id, 0)
		j = k.claimAhead(me)
		k.charged(id, 1) // still
		k.settle(handed("bob", j), 0)
		if v := k.view(id); v.Attempt != 1 || v.Worker != "bob" {
			k.Errorf("%+v", v)
		}
		k.settle(backends.Release{Leases: each(j), Uncounted: true}, 0)
		k.claimAhead(me)
		k.charged(id, 0) // its sidecar outlived it
	},
	"ARecordedDeliveryEndsTheRow": func(k *kit) {
		outlived := map[string]func(backends.Job){
			"delivered": func(j backends.Job) { k.settle(handed("bob", j), 0) },
			"extended":  func(j backends.Job) { k.settle(backends.Extend{Leases: each(j)}, 0) },
			"nacked":    func(j backends.Job) { k.settle(backends.Nack{Leases: each(j), HasDelay: true}, 0) },
			"disconnected": func(j backends.Job) {
				k.settle(backends.Release{Leases: each(j), Cause: backends.CauseDisconnected}, 0)
			},
		}
		for how, f := range outlived {
			id := k.put("a")[0]
			k.strands(1)
			k.strands(1)
			j := k.claimAhead(me)
			f(j)
			k.charged(id, 1)
			k.write(backends.Release{Leases: each(j), Uncounted: true}) // where it is still claimed
			before := k.view(id).Attempt
			k.strands(before + 1)
			k.strands(before + 1)
			k.strands(before + 1)
			if v := k.view(id); v.Attempt != before || v.State != backends.StateReady {
				k.Errorf("once %s: %+v, want it uncharged three times more", how, v)
			}
			k.command(backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{id}}, 1, false)
		}
	},
	"AGiveBackDoesNotEndTheRow": func(k *kit) {
		id := k.put("a")[0]
		for range 3 {
			k.strands(1)
			if k.view(id).Attempt == 0 {
				k.settle(backends.Release{Leases: each(k.claimAhead(me)), Uncounted: true}, 0)
			}
		}
		k.claimAhead(me)
		k.charged(id, 1)
	},
	"TheDeadlineCountsFromTheClaim": func(k *kit) {
		p := policy("q")
		p.Timeout, p.Backoff, p.BackoffMax = 10*time.Second, 0, 0
		for _, delivered := range []bool{false, true} { // or maybe it was
			id := k.put("a")[0]
			j := k.claimAheadBy(me, p)
			k.Shift(5 * time.Second)
			if delivered {
				k.settle(handed("bob", j), 0)
			}
			k.reaped(4*time.Second, "")
			k.reaped(time.Second, backends.CauseTimedOut)
			k.failures(id, backends.Failure{Attempt: 1, Cause: backends.CauseTimedOut})
			k.charged(id, 1)
			k.settle(backends.Ack{Leases: each(k.one())}, 0)
		}
	},
	"WhoExtendsHasIt": func(k *kit) {
		k.join(k, other)
		for _, e := range []backends.Extend{{}, {Lease: time.Hour}, {Bind: other, Worker: "bob"}} {
			id := k.put("a")[0]
			j := k.claimAhead(me)
			e.Leases = each(j)
			for range 2 {
				k.settle(e, 0)
				k.charged(id, 1)
			}
			k.settle(backends.Nack{Leases: each(j), Dead: true}, 0)
			k.failures(id, backends.Failure{Attempt: 1, Cause: backends.CauseNacked})
		}
	},
	"DeliveriesAgainstSettles": func(k *kit) {
		const n = 120
		k.fill(n)
		second := k.Again()
		jobs := k.commit(k.aheads(me, n, policy("q"))).Claims[0].Jobs
		backwards := slices.Clone(jobs)
		slices.Reverse(backwards)
		var wg sync.WaitGroup
		wg.Go(func() {
			for part := range slices.Chunk(backwards, 15) {
				if _, err := second.Commit(k.Context(), backends.Batch{Writes: []backends.Write{handed("bob", part...)}}); err != nil {
					k.Error(err)
				}
			}
		})
		wg.Go(func() {
			for part := range slices.Chunk(jobs, 20) {
				r, err := k.Commit(k.Context(), backends.Batch{Writes: []backends.Write{backends.Ack{Leases: each(part...)}}})
				if err != nil || len(r.Writes[0].Lost) != 0 {
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
