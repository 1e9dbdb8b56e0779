package backendtest

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func (k *kit) command(c backends.Command, count int64, freed bool) {
	k.Helper()
	n, f, err := k.inspector().Command(k.Context(), c)
	if err != nil || n != count || f != freed {
		k.Fatalf("%+v: changed %d, freed %v, %v; want %d, %v", c, n, f, err, count, freed)
	}
}

var commands = map[string]func(*kit){
	"RetryDeadOnly": func(k *kit) {
		m := k.mixture()
		var all []string
		for _, ids := range m {
			all = append(all, ids...)
		}
		dead := m[backends.StateDead]
		k.command(backends.Command{Kind: backends.Retry, Queue: "p", IDs: all}, 0, false)
		k.command(backends.Command{Kind: backends.Retry, Queue: "q", IDs: []string{dead[0], dead[0], "nonsense"}}, 1, true)
		k.command(backends.Command{Kind: backends.Retry, Queue: "q", IDs: all}, 2, true)
		k.command(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, 0, false)
		if v := k.view(dead[0]); v.State != backends.StateReady || v.Attempt != 0 || !v.FinishedAt.IsZero() || len(v.Failures) != 1 {
			k.Errorf("retried: %+v, want ready, no attempts, its history kept", v)
		}
		for _, j := range k.claim(99) {
			if j.Attempt != 1 {
				k.Errorf("job %s comes with attempt %d", j.ID, j.Attempt)
			}
		}
	},
	"RetriedAttemptsCountAnew": func(k *kit) {
		id := k.put("a")[0]
		for range 3 {
			k.lose(backends.CauseNacked)
			k.Shift(time.Hour)
			k.sweep(backends.Maintenance{})
		}
		k.state(id, backends.StateDead)
		k.command(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, 1, true)
		k.lose(backends.CauseDisconnected) // the first in a row again
		k.state(id, backends.StateReady)
		if v := k.view(id); len(v.Failures) != 4 {
			k.Errorf("%d failures are kept, want 4", len(v.Failures))
		}
	},
	"RetryMany": func(k *kit) {
		const n = 1100 // more than an engine may do at once
		k.fill(n)
		k.settle(backends.Nack{Leases: each(k.claim(n)...), Dead: true}, 0)
		k.put("not dead")
		k.command(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, n, true)
		k.given(k.claim(n+9), append([]string{"not dead"}, numbered(n)...)...)
	},
	"ManyGoOnWhereTheyStopped": func(k *kit) { // each bite is a transaction
		if k.Info().Engine == "memory" {
			return // it does all at once
		}
		const n = 2100 // more than two bites
		for _, c := range []backends.Command{{Kind: backends.Retry, Queue: "q", All: true}, {Kind: backends.Purge, Queue: "q", State: backends.StateDead}} {
			k.fill(n)
			k.settle(backends.Nack{Leases: each(k.claim(n)...), Dead: true}, 0)
			ctx, stop := context.WithCancel(k.Context())
			c.Progress = stop
			done, freed, err := k.inspector().Command(ctx, c)
			if !backends.Retryable(err) || done == 0 || done >= n || freed != (c.Kind == backends.Retry) {
				k.Fatalf("stopped: %d, %v, %v", done, freed, err)
			}
			if st := k.stats(); st.Dead != n-done {
				k.Fatalf("%+v after %d were done", st, done)
			}
			c.Progress = nil
			k.command(c, n-done, c.Kind == backends.Retry)
			k.command(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, k.stats().Ready, false)
		}
	},
	"RetriedIsNotPruned": func(k *kit) {
		k.put("a")
		k.nack(backends.Nack{Dead: true})
		k.command(backends.Command{Kind: backends.Retry, Queue: "q", All: true}, 1, true)
		k.Shift(48 * time.Hour)
		if r := k.sweep(backends.Maintenance{Prune: true}); r.Pruned != 0 {
			k.Errorf("%d pruned", r.Pruned)
		}
		k.one()
	},
	"DeleteAllButClaimed": func(k *kit) {
		m := k.mixture()
		for state, ids := range m {
			want := int64(3)
			if state == backends.StateClaimed {
				want = 0
			}
			k.command(backends.Command{Kind: backends.Delete, Queue: "p", IDs: ids}, 0, false)
			k.command(backends.Command{Kind: backends.Delete, Queue: "q", IDs: append(ids, "0", "nonsense", ids[0])}, want, false)
		}
		if st := k.stats(); st.Claimed != 3 || st.Ready+st.Scheduled+st.Dead+st.Done != 0 {
			k.Errorf("left: %+v", st)
		}
		if v := k.view(m[backends.StateDead][0]); v != nil {
			k.Errorf("%+v", v)
		}
	},
	"ForceRelease": func(k *kit) {
		ids := k.put("a", "b")
		j := k.claim(1)[0]
		k.command(backends.Command{Kind: backends.Reclaim, Queue: "p", IDs: ids}, 0, false)
		k.command(backends.Command{Kind: backends.Reclaim, Queue: "q", IDs: ids}, 1, true)
		k.settle(backends.Ack{Leases: each(j)}, 1)
		jobs := k.claim(9)
		k.given(jobs, "a", "b")
		if jobs[0].Attempt != 1 || jobs[0].LastError != "" {
			k.Errorf("attempt %d, last error %q; want no trace", jobs[0].Attempt, jobs[0].LastError)
		}
	},
	"Purge": func(k *kit) {
		for _, state := range []backends.State{backends.StateReady, backends.StateScheduled, backends.StateDone, backends.StateDead} {
			k.mixture()
			before := k.stats()
			count := map[backends.State]int64{backends.StateReady: before.Ready, backends.StateScheduled: before.Scheduled,
				backends.StateDone: before.Done, backends.StateDead: before.Dead}[state]
			k.command(backends.Command{Kind: backends.Purge, Queue: "p", State: state}, 0, false)
			k.command(backends.Command{Kind: backends.Purge, Queue: "q", State: state}, count, false)
			if got := k.peek(backends.Peek{State: state}); len(got) != 0 || count == 0 {
				k.Errorf("%s: %d of %d are left", state, len(got), count)
			}
			if after := k.stats(); after.Claimed != before.Claimed {
				k.Errorf("purging %s took %d claimed ones", state, before.Claimed-after.Claimed)
			}
			k.command(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, k.stats().Ready, false)
		}
	},
	"PurgeNotWhatIsClaimed": func(k *kit) {
		k.put("a")
		k.one()
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
		const n = 1100 // more than an engine may do at once
		k.fill(n)
		k.command(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, n, false)
	},
	"PauseHoldsOnEveryHandle": func(k *kit) {
		second := k.Again()
		k.put("a")
		k.command(backends.Command{Kind: backends.Pause, Queue: "q"}, 0, false)
		k.command(backends.Command{Kind: backends.Pause, Queue: "q"}, 0, false)
		r, err := second.Commit(k.Context(), k.claims(me, 1, 0, policy("q")))
		if err != nil || len(r.Claims[0].Jobs) != 0 || !k.stats().Paused {
			k.Errorf("%+v, %v", r, err)
		}
		k.command(backends.Command{Kind: backends.Resume, Queue: "q"}, 0, true)
		if k.stats().Paused {
			k.Error("still paused")
		}
		k.one()
	},
}
