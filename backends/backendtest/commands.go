package backendtest

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func (k *kit) operate(c backends.Command, count int64, freed bool) {
	k.Helper()
	n, f, err := k.inspector().Command(k.Context(), c)
	if err != nil || n != count || f != freed {
		k.Fatalf("%+v: changed %d, made ready: %v, %v; want %d, %v", c, n, f, err, count, freed)
	}
}

var commandTests = map[string]func(*kit){
	"RetryAppliesToDeadJobs": func(k *kit) {
		m := k.jobsInAllStates()
		var all []string
		for _, ids := range m {
			all = append(all, ids...)
		}
		dead := m[backends.StateDead]
		k.operate(backends.Command{Kind: backends.Retry, Queue: "p", IDs: all}, 0, false)
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", IDs: []string{dead[0], dead[0], "nonsense"}}, 1, true)
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", IDs: all}, 2, true)
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, 0, false)
		if v := k.view(dead[0]); v.State != backends.StateReady || v.Attempt != 0 || !v.FinishedAt.IsZero() || len(v.Failures) != 1 {
			k.Errorf("retried: %+v, want ready, no attempts, its history kept", v)
		}
		for _, j := range k.claim(99) {
			if j.Attempt != 1 {
				k.Errorf("job %s comes with attempt %d", j.ID, j.Attempt)
			}
		}
	},
	"RetryResetsAttempts": func(k *kit) {
		id := k.enqueuePayloads("a")[0]
		for range 3 {
			k.loseOne(backends.CauseNacked)
			k.AdvanceClock(time.Hour)
			k.maintain(backends.Maintenance{})
		}
		k.wantState(id, backends.StateDead)
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, 1, true)
		k.loseOne(backends.CauseDisconnected) // the first loss in a row again
		k.wantState(id, backends.StateReady)
		if v := k.view(id); len(v.Failures) != 4 {
			k.Errorf("%d failures are kept, want 4", len(v.Failures))
		}
	},
	"RetryAllIncludesInsertedDeadJobs": func(k *kit) {
		if k.InsertRow == nil {
			return
		}
		finished := "'2020-01-02 03:04:05'"
		if k.Info().Engine == "sqlite" {
			finished = "1577934245000"
		}
		if err := k.InsertRow("state", "'dead'", false); err == nil {
			k.Error("a dead job without finished_at is stored")
		}
		for range 2 {
			if err := k.InsertRow("state, finished_at", "'dead', "+finished, false); err != nil {
				k.Fatalf("insert of a dead job: %v", err)
			}
		}
		k.enqueuePayloads("failed")
		k.nackOne(backends.Nack{Dead: true})
		dead := k.stats().Dead
		if dead != 3 {
			k.Fatalf("%d jobs are dead, want 3", dead)
		}
		shown := 0
		for p := (backends.Peek{State: backends.StateDead, Max: 1}); ; shown++ {
			ids := k.peek(p)
			if len(ids) == 0 {
				break
			}
			p.After = ids[0]
		}
		if int64(shown) != dead {
			k.Errorf("%d of %d dead jobs are shown one after the other", shown, dead)
		}
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, dead, true)
		if st := k.stats(); st.Dead != 0 || st.Ready != dead {
			k.Errorf("after the retry: %+v, want %d ready", st, dead)
		}
	},
	"RetryMany": func(k *kit) {
		const n = 1100 // more than an engine changes in one transaction
		k.enqueueMany(n)
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claim(n)...), Dead: true}, 0)
		k.enqueuePayloads("not dead")
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, n, true)
		k.wantJobs(k.claim(n+9), append([]string{"not dead"}, numbered(n)...)...)
	},
	"InterruptedCommandContinuesWhereItStopped": func(k *kit) { // each batch has its own transaction
		if k.Info().Engine == "memory" {
			return // it changes everything in one transaction
		}
		const n = 2100 // more than two batches, of 1,000 jobs at most
		for _, c := range []backends.Command{{Kind: backends.Retry, Queue: "q", All: true}, {Kind: backends.Purge, Queue: "q", State: backends.StateDead}} {
			k.enqueueMany(n)
			k.writeLosing(backends.Nack{Leases: leasesOf(k.claim(n)...), Dead: true}, 0)
			ctx, stop := context.WithCancel(k.Context())
			c.Progress = stop
			done, freed, err := k.inspector().Command(ctx, c)
			if !backends.Retryable(err) || done == 0 || done > 1000 || freed != (c.Kind == backends.Retry) {
				k.Fatalf("interrupted: changed %d, made ready: %v, %v", done, freed, err)
			}
			if st := k.stats(); st.Dead != n-done {
				k.Fatalf("%+v after %d were done", st, done)
			}
			c.Progress = nil
			k.operate(c, n-done, c.Kind == backends.Retry)
			k.operate(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, k.stats().Ready, false)
		}
	},
	"RetriedJobIsNotPruned": func(k *kit) {
		k.enqueuePayloads("a")
		k.nackOne(backends.Nack{Dead: true})
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, 1, true)
		k.AdvanceClock(48 * time.Hour)
		if r := k.maintain(backends.Maintenance{Prune: true}); r.Pruned != 0 {
			k.Errorf("%d pruned", r.Pruned)
		}
		k.claimOne()
	},
	"DeleteSkipsClaimedJobs": func(k *kit) {
		m := k.jobsInAllStates()
		for state, ids := range m {
			want := int64(3)
			if state == backends.StateClaimed {
				want = 0
			}
			k.operate(backends.Command{Kind: backends.Delete, Queue: "p", IDs: ids}, 0, false)
			k.operate(backends.Command{Kind: backends.Delete, Queue: "q", IDs: append(ids, "0", "nonsense", ids[0])}, want, false)
		}
		if st := k.stats(); st.Claimed != 3 || st.Ready+st.Scheduled+st.Dead+st.Done != 0 {
			k.Errorf("left: %+v", st)
		}
		if v := k.view(m[backends.StateDead][0]); v != nil {
			k.Errorf("%+v", v)
		}
	},
	"ReclaimTakesBackClaimedJobs": func(k *kit) {
		ids := k.enqueuePayloads("a", "b")
		j := k.claim(1)[0]
		k.operate(backends.Command{Kind: backends.Reclaim, Queue: "p", IDs: ids}, 0, false)
		k.operate(backends.Command{Kind: backends.Reclaim, Queue: "q", IDs: ids}, 1, true)
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 1)
		jobs := k.claim(9)
		k.wantJobs(jobs, "a", "b")
		if jobs[0].Attempt != 1 || jobs[0].LastError != "" {
			k.Errorf("attempt %d, last error %q; want no trace", jobs[0].Attempt, jobs[0].LastError)
		}
	},
	"Purge": func(k *kit) {
		for _, state := range []backends.State{backends.StateReady, backends.StateScheduled, backends.StateDone, backends.StateDead} {
			k.jobsInAllStates()
			before := k.stats()
			count := map[backends.State]int64{backends.StateReady: before.Ready, backends.StateScheduled: before.Scheduled,
				backends.StateDone: before.Done, backends.StateDead: before.Dead}[state]
			k.operate(backends.Command{Kind: backends.Purge, Queue: "p", State: state}, 0, false)
			k.operate(backends.Command{Kind: backends.Purge, Queue: "q", State: state}, count, false)
			if got := k.peek(backends.Peek{State: state}); len(got) != 0 || count == 0 {
				k.Errorf("%s: %d of %d are left", state, len(got), count)
			}
			if after := k.stats(); after.Claimed != before.Claimed {
				k.Errorf("purging %s deleted %d claimed jobs", state, before.Claimed-after.Claimed)
			}
			k.operate(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, k.stats().Ready, false)
		}
	},
	"PurgeRefusesClaimedJobs": func(k *kit) {
		k.enqueuePayloads("a")
		k.claimOne()
		for _, state := range []backends.State{backends.StateClaimed, "nonsense"} {
			if n, _, err := k.inspector().Command(k.Context(), backends.Command{Kind: backends.Purge, Queue: "q", State: state}); err == nil || n != 0 {
				k.Errorf("purge of %s: %d, %v; want an error", state, n, err)
			}
		}
		if st := k.stats(); st.Claimed != 1 {
			k.Errorf("%+v", st)
		}
	},
	"PurgeMany": func(k *kit) {
		const n = 1100 // more than an engine changes in one transaction
		k.enqueueMany(n)
		k.operate(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, n, false)
	},
	"PauseAppliesToEveryHandle": func(k *kit) {
		second := k.OpenAnother()
		k.enqueuePayloads("a")
		k.operate(backends.Command{Kind: backends.Pause, Queue: "q"}, 0, false)
		k.operate(backends.Command{Kind: backends.Pause, Queue: "q"}, 0, false)
		r, err := second.Commit(k.Context(), k.claimBatch(me, 1, 0, policy("q")))
		if err != nil || len(r.Claims[0].Jobs) != 0 || !k.stats().Paused {
			k.Errorf("%+v, %v", r, err)
		}
		k.operate(backends.Command{Kind: backends.Resume, Queue: "q"}, 0, true)
		if k.stats().Paused {
			k.Error("still paused")
		}
		k.claimOne()
	},
}
