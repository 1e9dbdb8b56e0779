package backendtest

import (
	"sync"
	"sync/atomic"
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
	if r := k.sweep(backends.Maintenance{}); r.Pruned != 0 {
		k.Fatalf("a sweep that was not asked to prune deleted %d", r.Pruned)
	}
	if r := k.sweep(backends.Maintenance{Prune: true}); r.Pruned != want {
		k.Fatalf("%d pruned, want %d", r.Pruned, want)
	}
}

var retention = map[string]func(*kit){
	"DoneJobsStayForKeep": func(k *kit) {
		p := policy("q")
		p.RetainDone = time.Hour
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
		p.RetainDead = 0
		id := k.finish(p, true)
		k.pruned(10*365*24*time.Hour, 0)
		k.state(id, backends.StateDead)
	},
	"WaitingJobsAreNeverPruned": func(k *kit) {
		k.put("a")
		k.enqueue(backends.NewJob{Queue: "q", Delay: time.Hour})
		k.Shift(10 * 365 * 24 * time.Hour)
		if r := k.sweep(backends.Maintenance{Prune: true}); r.Pruned != 0 || r.Promoted != 1 {
			k.Errorf("%+v", r)
		}
		if n := len(k.claim(9)); n != 2 {
			k.Errorf("%d jobs are left, want 2", n)
		}
	},
	"WhatIsOverGoesAlone": func(k *kit) { // beside everything that must stay
		keep := func(d, dead time.Duration) backends.Policy {
			p := policy("q")
			p.RetainDone, p.RetainDead = d, dead
			return p
		}
		over := []string{k.finish(keep(time.Hour, 0), false), k.finish(keep(0, time.Hour), true)}
		stays := map[string]backends.State{
			k.finish(keep(time.Hour+time.Second, 0), false): backends.StateDone,
			k.finish(keep(0, time.Hour+time.Second), true):  backends.StateDead,
			k.finish(keep(0, 0), true):                      backends.StateDead,
		}
		stays[k.put("claimed")[0]] = backends.StateClaimed
		k.one()
		stays[k.put("ready")[0]] = backends.StateReady
		stays[k.enqueue(backends.NewJob{Queue: "q", Delay: 2 * time.Hour})[0]] = backends.StateScheduled
		k.pruned(time.Hour, len(over))
		for _, id := range over {
			k.state(id, backends.StateDeleted)
		}
		for id, state := range stays {
			k.state(id, state)
		}
	},
	"KeepIsThatOfTheClaim": func(k *kit) {
		short, long := policy("q"), policy("q")
		short.RetainDone, long.RetainDone = 0, time.Hour
		k.put(numbered(3)...)
		before := k.commit(k.claims(me, 1, 0, short)).Claims[0].Jobs // and then the config is changed
		during := k.commit(k.claims(me, 1, 0, long)).Claims[0].Jobs
		after := k.commit(k.claims(me, 1, 0, short)).Claims[0].Jobs
		k.settle(backends.Ack{Leases: each(append(append(before, during...), after...)...)}, 0)
		k.state(before[0].ID, backends.StateDeleted)
		k.state(during[0].ID, backends.StateDone)
		k.state(after[0].ID, backends.StateDeleted)
		k.pruned(time.Hour, 1)
	},
	"PruneTogether": func(k *kit) {
		const n = 30
		p := policy("q")
		p.RetainDone = time.Hour
		k.put(numbered(n)...)
		k.settle(backends.Ack{Leases: each(k.commit(k.claims(me, n, 0, p)).Claims[0].Jobs...)}, 0)
		k.Shift(time.Hour)
		var pruned atomic.Int64
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				for pruned.Load() < n && k.Context().Err() == nil { // what another one has locked is passed over
					r, err := k.Maintain(k.Context(), backends.Maintenance{Limit: 10, Prune: true, PruneBatch: 4})
					if err != nil {
						k.Error(err)
						return
					}
					pruned.Add(int64(r.Pruned))
				}
			})
		}
		all.Wait()
		if got := pruned.Load(); got != n {
			k.Errorf("%d pruned in all, want %d", got, n)
		}
		if st := k.stats(); st.Done != 0 {
			k.Errorf("%+v", st)
		}
	},
	"PruneInBites": func(k *kit) {
		p := policy("q")
		p.RetainDone = time.Hour
		k.put(numbered(5)...)
		k.settle(backends.Ack{Leases: each(k.commit(k.claims(me, 5, 0, p)).Claims[0].Jobs...)}, 0)
		k.Shift(time.Hour)
		total := 0
		for range 3 {
			r := k.sweep(backends.Maintenance{Prune: true, PruneBatch: 2})
			if r.PruneOverdue != 0 || r.More {
				k.Errorf("overdue for %v, more: %v", r.PruneOverdue, r.More)
			}
			if total += r.Pruned; r.PruneMore != (total < 5) || r.LongestPrune <= 0 {
				k.Errorf("after %d there is more: %v; it took %v", total, r.PruneMore, r.LongestPrune)
			}
		}
		if total != 5 {
			k.Errorf("%d pruned, want 5", total)
		}
	},
}
