package backendtest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// cancelled carries out a command that names jobs, and checks how many it changed and which ones it left.
func (k *kit) cancelled(c backends.Command, count int64, left ...backends.JobState) (ended []backends.Token) {
	k.Helper()
	var got []backends.JobState
	c.Unchanged = func(jobs []backends.JobState) { got = append(got, jobs...) }
	c.Ended = func(claims []backends.Token) { ended = append(ended, claims...) }
	k.operate(c, count, c.Kind == backends.Retry && count > 0)
	if !slices.Equal(got, left) {
		k.Fatalf("command %d of %v left %+v, want %+v", c.Kind, c.IDs, got, left)
	}
	return ended
}

func cancelOf(ids ...string) backends.Command {
	return backends.Command{Kind: backends.Cancel, Queue: "q", IDs: ids, RetainDead: time.Hour}
}

func stateOf(id string, s backends.State) backends.JobState {
	return backends.JobState{ID: id, State: s}
}

// wantCancelled checks that jobs are dead because of a cancel, with that many attempts.
func (k *kit) wantCancelled(attempts int, ids ...string) {
	k.Helper()
	for _, id := range ids {
		v := k.view(id)
		if v == nil || v.State != backends.StateDead || v.FinishedAt.IsZero() || !v.RunAt.IsZero() || !v.ClaimedAt.IsZero() || v.Attempt != attempts {
			k.Fatalf("job %s: %+v, want dead with %d attempts", id, v, attempts)
		}
		f := v.Failures[len(v.Failures)-1]
		if f.Cause != backends.CauseCancelled || f.Message != backends.CancelledMessage || f.Attempt != attempts || f.At.IsZero() {
			k.Fatalf("job %s failed last with %+v", id, f)
		}
	}
}

// wantNotes checks which cancelled claims a sidecar finds.
func (k *kit) wantNotes(sidecar backends.Identity, want ...backends.Token) {
	k.Helper()
	r := k.maintain(backends.Maintenance{Sidecar: sidecar})
	asked, err := k.inspector().Cancelled(k.Context(), sidecar)
	if err != nil {
		k.Fatal(err)
	}
	for _, got := range [][]backends.Token{r.Cancelled, asked} {
		slices.SortFunc(got, func(a, b backends.Token) int { return int(a.Number) - int(b.Number) })
		if !slices.Equal(got, want) {
			k.Fatalf("sidecar %d finds the cancelled claims %v, want %v", sidecar, got, want)
		}
	}
}

// cancelRaces lets each of n claimed jobs be cancelled while end settles it, and checks that one of the two has won.
func (k *kit) cancelRaces(end func(l []backends.Lease) backends.Write) {
	const n = 40
	k.enqueueMany(n)
	jobs := k.claim(n)
	second := k.OpenAnother()
	k.join(second, other)
	cancels, ok := second.(backends.Inspector)
	if !ok {
		k.Fatalf("%T isn't an Inspector", second)
	}
	lost := make([]bool, n)
	left := make([][]backends.JobState, n)
	var g sync.WaitGroup
	g.Go(func() {
		for i := range jobs {
			r, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{end(leasesOf(jobs[i]))}})
			for err == nil && r.Writes[0].Err != nil {
				r, err = k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{end(leasesOf(jobs[i]))}, WaitForLocks: true})
			}
			if err != nil {
				k.Error(err)
				return
			}
			lost[i] = len(r.Writes[0].Lost) > 0
		}
	})
	g.Go(func() {
		for i := range jobs {
			c := cancelOf(jobs[n-1-i].ID)
			c.Unchanged = func(all []backends.JobState) { left[n-1-i] = all }
			if _, _, err := cancels.Command(k.Context(), c); err != nil {
				k.Error(err)
			}
		}
	})
	g.Wait()
	for i, j := range jobs {
		v := k.view(j.ID)
		won := len(left[i]) == 0
		switch {
		case won && (v == nil || v.State != backends.StateDead || v.Failures[len(v.Failures)-1].Cause != backends.CauseCancelled):
			k.Errorf("job %s: the cancel succeeded, and the job is %+v", j.ID, v)
		case !won && (lost[i] || len(left[i]) != 1 || left[i][0].Cancelled):
			k.Errorf("job %s: lost %v, and the cancel says %+v", j.ID, lost[i], left[i])
		}
	}
}

var cancelTests = map[string]func(*kit){
	"EndsJobsInEachState": func(k *kit) {
		m := k.jobsInAllStates()
		var all []string
		for _, s := range []backends.State{backends.StateReady, backends.StateScheduled, backends.StateClaimed, backends.StateDone, backends.StateDead} {
			all = append(all, m[s]...)
		}
		var left []backends.JobState
		for _, s := range []backends.State{backends.StateDone, backends.StateDead} {
			for _, id := range m[s] {
				left = append(left, stateOf(id, s))
			}
		}
		ended := len(m[backends.StateReady]) + len(m[backends.StateScheduled]) + len(m[backends.StateClaimed])
		claims := k.cancelled(cancelOf(append(all, all[0], "nonsense", "987654321")...), int64(ended),
			append(left, stateOf("nonsense", backends.StateDeleted), stateOf("987654321", backends.StateDeleted))...)
		if len(claims) != len(m[backends.StateClaimed]) {
			k.Errorf("%d claims ended, want %d", len(claims), len(m[backends.StateClaimed]))
		}
		k.wantCancelled(0, slices.Concat(m[backends.StateReady], m[backends.StateScheduled])...)
		k.wantCancelled(1, m[backends.StateClaimed]...)
		k.wantNoneReady()
		k.AdvanceClock(1000 * time.Hour)
		k.maintain(backends.Maintenance{})
		k.wantNoneReady()
	},
	"IsRepeatable": func(k *kit) {
		ids := k.enqueuePayloads("a", "b")
		k.claim(1)
		for range 2 {
			k.cancelled(cancelOf(ids...), 2)
		}
		if v := k.view(ids[0]); len(v.Failures) != 1 {
			k.Errorf("cancelled twice: %+v", v.Failures)
		}
		remove := cancelOf(ids...)
		remove.Remove = true
		k.cancelled(remove, 2)
		k.cancelled(remove, 0, stateOf(ids[0], backends.StateDeleted), stateOf(ids[1], backends.StateDeleted))
		k.wantState(ids[0], backends.StateDeleted)
	},
	"LeavesOtherQueues": func(k *kit) {
		id := k.enqueue(backends.NewJob{Queue: "p"})[0]
		k.cancelled(cancelOf(id), 0, stateOf(id, backends.StateDeleted))
		k.wantState(id, backends.StateReady)
	},
	"RemovesJobs": func(k *kit) {
		ids := k.enqueue(keyed("a"), keyed("b"), backends.NewJob{Queue: "q", Delay: time.Hour, Key: "c", KeyTTL: keyTTL})
		k.claim(1)
		c := cancelOf(ids...)
		c.Remove = true
		k.cancelled(c, 3)
		for i, key := range []string{"a", "b", "c"} {
			k.wantState(ids[i], backends.StateDeleted)
			k.enqueueKey(key, ids[i], backends.StateDeleted)
		}
		k.AdvanceClock(2 * keyTTL)
		k.enqueueKey("a", "", "")
	},
	"KeepsTheKeyAsOtherDeadJobs": func(k *kit) {
		claimed, waiting := k.enqueueKey("a", "", ""), k.enqueueKey("b", "", "")
		k.claim(1)
		k.cancelled(cancelOf(claimed, waiting), 2)
		k.enqueueKey("a", claimed, backends.StateDead)
		k.enqueueKey("b", waiting, backends.StateDead)
		k.AdvanceClock(2 * keyTTL)
		k.enqueueKey("a", "", "")
		k.enqueueKey("b", "", "")
	},
	"LosesTheLease": func(k *kit) {
		for _, w := range []func(j backends.Job) backends.Write{
			func(j backends.Job) backends.Write {
				return backends.Ack{Leases: leasesOf(j), Enqueue: []backends.NewJob{{Queue: "p", Payload: []byte("follow-up")}}}
			},
			func(j backends.Job) backends.Write { return backends.Nack{Leases: leasesOf(j)} },
			func(j backends.Job) backends.Write { return backends.Extend{Leases: leasesOf(j), Lease: time.Minute} },
			func(j backends.Job) backends.Write { return backends.Extend{Leases: leasesOf(j), Bind: me} },
			func(j backends.Job) backends.Write { return backends.Release{Leases: leasesOf(j), Uncounted: true} },
			func(j backends.Job) backends.Write {
				return backends.Release{Leases: leasesOf(j), Cause: backends.CauseDisconnected}
			},
			func(j backends.Job) backends.Write { return handedOut(j, 0) },
		} {
			id := k.enqueuePayloads("a")[0]
			j := k.claimOne()
			k.cancelled(cancelOf(id), 1)
			k.writeLosing(w(j), 1)
			k.wantCancelled(1, id)
		}
		if v := k.views(backends.Peek{Queue: "p", Max: 9}); len(v) > 0 {
			k.Errorf("a lost ack stored %d jobs", len(v))
		}
	},
	"LosesToASettle": func(k *kit) {
		keep := policy("q")
		keep.RetainDone = time.Hour
		ids := k.enqueuePayloads("gone", "done", "dead", "scheduled")
		jobs := append(k.claim(1), k.commit(k.claimBatch(me, 3, 0, keep)).Claims[0].Jobs...)
		k.writeLosing(backends.Ack{Leases: leasesOf(jobs[:2]...)}, 0)
		k.writeLosing(backends.Nack{Leases: leasesOf(jobs[2]), Dead: true}, 0)
		k.writeLosing(backends.Nack{Leases: leasesOf(jobs[3]), Delay: time.Hour, HasDelay: true}, 0)
		k.cancelled(cancelOf(ids...), 1, stateOf(ids[0], backends.StateDeleted), stateOf(ids[1], backends.StateDone), stateOf(ids[2], backends.StateDead))
		k.wantCancelled(1, ids[3]) // it has another failure of the same attempt
	},
	"PrefetchedJobHasNoAttempt": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		j := k.prefetchOne(me)
		k.cancelled(cancelOf(id), 1)
		k.wantCancelled(0, id)
		k.writeLosing(handedOut(j, 0), 1)
		k.writeLosing(backends.Release{Leases: leasesOf(j), Uncounted: true}, 1)
		k.wantNotes(me, j.Token)
	},
	"TimedLeaseAndDeadlineEndNothing": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		k.claimTimed(time.Second, time.Second)
		k.cancelled(cancelOf(id), 1)
		k.AdvanceClock(time.Hour / 2)
		if r := k.maintain(backends.Maintenance{}); len(r.Reaped) > 0 {
			k.Errorf("reaped %v", r.Reaped)
		}
		k.wantCancelled(1, id)
	},
	"AfterAReap": func(k *kit) {
		ids := k.enqueuePayloads("a")
		j := k.claimTimed(time.Second, time.Hour)
		k.AdvanceClock(2 * time.Second)
		k.maintain(backends.Maintenance{})
		k.cancelled(cancelOf(ids...), 1)
		k.wantCancelled(1, ids[0])
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 1)
		k.wantNotes(me)
	},
	"RetriedJobRunsAgain": func(k *kit) {
		ids := k.enqueuePayloads("claimed", "waiting")
		first := k.claim(1)[0]
		k.cancelled(cancelOf(ids...), 2)
		k.cancelled(backends.Command{Kind: backends.Retry, Queue: "q", IDs: ids}, 2)
		jobs := k.claim(9)
		k.wantJobs(jobs, "claimed", "waiting")
		for _, j := range jobs {
			if j.Attempt != 1 || j.LastError != backends.CancelledMessage {
				k.Errorf("retried: %+v", j)
			}
		}
		if jobs[0].Fence <= first.Fence || jobs[1].Fence == 0 {
			k.Errorf("fences %d and %d after %d", jobs[0].Fence, jobs[1].Fence, first.Fence)
		}
		k.writeLosing(backends.Ack{Leases: leasesOf(first)}, 1)
		k.writeLosing(backends.Ack{Leases: leasesOf(jobs...)}, 0)
	},
	"IsPrunedByTheQueuesRetention": func(k *kit) {
		k.enqueuePayloads("claimed", "waiting")
		jobs := k.claim(1) // whose policy retains dead jobs for a day
		waiting := k.peek(backends.Peek{State: backends.StateReady, Max: 1})[0]
		k.cancelled(cancelOf(jobs[0].ID, waiting), 2)
		k.wantPruned(time.Hour+time.Second, 1)
		k.wantState(waiting, backends.StateDeleted)
		k.wantPruned(24*time.Hour, 1)
		forever := k.enqueuePayloads("b")[0]
		c := cancelOf(forever)
		c.RetainDead = 0
		k.cancelled(c, 1)
		k.wantPruned(10000*time.Hour, 0)
	},
	"ReachesTheOwner": func(k *kit) {
		k.join(k, other)
		ids := k.enqueuePayloads("mine", "other's", "also", "bound", "waiting")
		mine := k.claim(1)[0]
		theirs := k.commit(k.claimBatch(other, 2, 0, policy("q"))).Claims[0].Jobs
		bound := k.claim(1)[0]
		k.writeLosing(backends.Extend{Leases: leasesOf(bound), Bind: other, Worker: "w"}, 0)
		ended := k.cancelled(cancelOf(ids...), 5)
		for _, j := range []backends.Job{mine, theirs[0], theirs[1], bound} {
			if !slices.Contains(ended, j.Token) {
				k.Errorf("the claim of %s isn't reported", j.Payload)
			}
		}
		for range 2 { // until they are handled
			k.wantNotes(me, mine.Token)
			k.wantNotes(other, theirs[0].Token, theirs[1].Token, bound.Token)
		}
		k.maintain(backends.Maintenance{Sidecar: other, Handled: []backends.Token{theirs[0].Token, bound.Token}})
		k.wantNotes(other, theirs[1].Token)
		k.wantNotes(me, mine.Token)
		k.maintain(backends.Maintenance{Sidecar: me, Handled: []backends.Token{mine.Token, mine.Token}})
		k.wantNotes(me)
	},
	"OfADeadSidecar": func(k *kit) {
		k.join(k, other)
		ids := k.enqueuePayloads("before", "after", "left")
		k.commit(k.claimBatch(other, 2, 0, policy("q")))
		k.cancelled(cancelOf(ids[0]), 1)
		k.AdvanceClock(sidecarTimeout + time.Second)
		k.cancelled(cancelOf(ids[1]), 1) // its jobs are not reaped yet
		if r := k.evict(k.peer(other)); len(r.Reaped) > 0 {
			k.Errorf("reaped %v", r.Reaped)
		}
		k.wantCancelled(1, ids[:2]...)
		k.wantNotes(other)
		k.wantJobs(k.claim(9), "left")
	},
	"RacesAcks": func(k *kit) {
		k.cancelRaces(func(l []backends.Lease) backends.Write { return backends.Ack{Leases: l} })
	},
	"RacesNacks": func(k *kit) {
		k.cancelRaces(func(l []backends.Lease) backends.Write { return backends.Nack{Leases: l, Dead: true} })
	},
	"RacesReleases": func(k *kit) {
		k.cancelRaces(func(l []backends.Lease) backends.Write { return backends.Release{Leases: l, Uncounted: true} })
	},
	"RacesClaims": func(k *kit) {
		const n = 60
		var ids []string
		for i := range n {
			ids = append(ids, k.enqueuePayloads(fmt.Sprint(i))...)
		}
		second := k.OpenAnother()
		k.join(second, other)
		var claimed []backends.Job
		var g sync.WaitGroup
		g.Go(func() {
			for range n {
				r, err := second.Commit(k.Context(), k.claimBatch(other, 1, 0, policy("q")))
				if err != nil {
					k.Error(err)
					return
				}
				claimed = append(claimed, r.Claims[0].Jobs...)
			}
		})
		done := int64(0)
		g.Go(func() {
			for part := range slices.Chunk(ids, 7) {
				slices.Reverse(part)
				c, _, err := k.inspector().Command(k.Context(), cancelOf(part...))
				if done += c; err != nil {
					k.Error(err)
				}
			}
		})
		g.Wait()
		if st := k.stats(); done != n || st.Dead != n || st.Claimed+st.Ready != 0 {
			k.Errorf("cancelled %d of %d: %+v", done, n, st)
		}
		k.wantNoneReady()
		k.writeLosing(backends.Ack{Leases: leasesOf(claimed...)}, len(claimed))
	},
	"OtherCommandsNameWhatTheyLeave": func(k *kit) {
		keep := policy("q")
		keep.RetainDone = time.Hour
		ids := k.enqueuePayloads("done", "dead", "claimed", "ready")
		k.write(backends.Ack{Leases: leasesOf(k.onlyJob(k.claimBatch(me, 1, 0, keep)))})
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claim(1)...), Dead: true}, 0)
		k.claim(1)
		gone := stateOf("12345", backends.StateDeleted)
		all := append(ids, gone.ID)
		states := []backends.JobState{stateOf(ids[0], backends.StateDone), stateOf(ids[1], backends.StateDead), stateOf(ids[2], backends.StateClaimed), stateOf(ids[3], backends.StateReady), gone}
		without := func(i int) []backends.JobState { return slices.Concat(states[:i], states[i+1:]) }
		delay := time.Hour
		k.cancelled(backends.Command{Kind: backends.Change, Queue: "q", IDs: all, Delay: &delay}, 1, without(3)...)
		states[3].State = backends.StateScheduled
		k.cancelled(backends.Command{Kind: backends.Retry, Queue: "q", IDs: all}, 1, without(1)...)
		states[1].State = backends.StateReady
		k.cancelled(backends.Command{Kind: backends.Delete, Queue: "q", IDs: all}, 3, states[2], gone)
		k.operate(backends.Command{Kind: backends.Reclaim, Queue: "q", IDs: all, Unchanged: func(left []backends.JobState) {
			if want := []backends.JobState{stateOf(ids[0], backends.StateDeleted), stateOf(ids[1], backends.StateDeleted), stateOf(ids[3], backends.StateDeleted), gone}; !slices.Equal(left, want) {
				k.Errorf("reclaim left %+v, want %+v", left, want)
			}
		}}, 1, true)
	},
}
