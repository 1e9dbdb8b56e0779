package backendtest

import (
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// finish ends one job as done or dead, under a policy.
func (k *kit) finish(p backends.Policy, dead bool) string {
	k.Helper()
	k.put("a")
	j := k.commit(k.claims(me, 1, 0, p)).Claims[0].Jobs
	if dead {
		k.settle(backends.Nack{Leases: each(j...), Dead: true, Error: "why"}, 0)
	} else {
		k.settle(backends.Ack{Leases: each(j...)}, 0)
	}
	return j[0].ID
}

// pruned moves the clock and checks how much a sweep deletes.
func (k *kit) pruned(after time.Duration, want int) {
	k.Helper()
	k.Shift(after)
	if r := k.sweep(backends.Sweep{}); r.Pruned != 0 {
		k.Fatalf("a sweep that was not asked to prune deleted %d", r.Pruned)
	}
	if r := k.sweep(backends.Sweep{Prune: true}); r.Pruned != want {
		k.Fatalf("%d pruned, want %d", r.Pruned, want)
	}
}

var retention = map[string]func(*kit){
	"DoneJobsStayForKeep": func(k *kit) {
		p := policy("q")
		p.Keep = time.Hour
		id := k.finish(p, false)
		k.pruned(59*time.Minute, 0)
		k.state(id, backends.StateDone)
		k.pruned(time.Minute, 1)
		k.state(id, backends.StateDeleted)
		if st := k.stats(); st.Done != 0 {
			k.Errorf("%+v", st)
		}
	},
	"DeadJobsStayForKeepDead": func(k *kit) {
		id := k.finish(policy("q"), true)
		k.pruned(24*time.Hour-time.Second, 0)
		k.state(id, backends.StateDead)
		k.pruned(time.Second, 1)
		k.state(id, backends.StateDeleted)
	},
	"DeadJobsForEver": func(k *kit) {
		p := policy("q")
		p.KeepDead = 0
		id := k.finish(p, true)
		k.pruned(10*365*24*time.Hour, 0)
		k.state(id, backends.StateDead)
	},
	"WaitingJobsAreNeverPruned": func(k *kit) {
		k.put("a")
		k.enqueue(backends.NewJob{Queue: "q", Delay: time.Hour})
		k.Shift(10 * 365 * 24 * time.Hour)
		if r := k.sweep(backends.Sweep{Prune: true}); r.Pruned != 0 || r.Promoted != 1 {
			k.Errorf("%+v", r)
		}
		if n := len(k.claim(9)); n != 2 {
			k.Errorf("%d jobs are left, want 2", n)
		}
	},
	"PruneInBites": func(k *kit) {
		p := policy("q")
		p.Keep = time.Hour
		k.put(numbered(5)...)
		k.settle(backends.Ack{Leases: each(k.commit(k.claims(me, 5, 0, p)).Claims[0].Jobs...)}, 0)
		k.Shift(time.Hour)
		total := 0
		for range 3 {
			r := k.sweep(backends.Sweep{Prune: true, Limit: 2})
			if total += r.Pruned; r.More != (total < 5) {
				k.Errorf("more is %v after %d", r.More, total)
			}
		}
		if total != 5 {
			k.Errorf("%d pruned, want 5", total)
		}
	},
}
