package backendtest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// finishOne enqueues, claims and finishes one job under a policy.
func (k *kit) finishOne(p backends.Policy, dead bool) string {
	k.Helper()
	k.enqueuePayloads("a")
	j := k.commit(k.claimBatch(me, 1, 0, p)).Claims[0].Jobs
	if dead {
		k.writeLosing(backends.Nack{Leases: leasesOf(j...), Dead: true, Error: "why"}, 0)
	} else {
		k.writeLosing(backends.Ack{Leases: leasesOf(j...)}, 0)
	}
	return j[0].ID
}

// wantPruned advances the clock and checks how many jobs maintenance prunes.
func (k *kit) wantPruned(after time.Duration, want int) {
	k.Helper()
	k.AdvanceClock(after)
	if r := k.maintain(backends.Maintenance{}); r.Pruned != 0 {
		k.Fatalf("maintenance without Prune deleted %d", r.Pruned)
	}
	if r := k.maintain(backends.Maintenance{Prune: true}); r.Pruned != want {
		k.Fatalf("%d pruned, want %d", r.Pruned, want)
	}
}

var retentionTests = map[string]func(*kit){
	"DoneJobsStayForTheirRetention": func(k *kit) {
		p := policy("q")
		p.RetainDone = time.Hour
		id := k.finishOne(p, false)
		k.wantPruned(59*time.Minute, 0)
		k.wantState(id, backends.StateDone)
		k.wantPruned(time.Minute, 1)
		k.wantState(id, backends.StateDeleted)
		if st := k.stats(); st.Done != 0 {
			k.Errorf("%+v", st)
		}
	},
	"DeadJobsStayForTheirRetention": func(k *kit) {
		id := k.finishOne(policy("q"), true)
		k.wantPruned(24*time.Hour-time.Second, 0)
		k.wantState(id, backends.StateDead)
		k.wantPruned(time.Second, 1)
		k.wantState(id, backends.StateDeleted)
	},
	"DeadJobsStayWithoutARetention": func(k *kit) {
		p := policy("q")
		p.RetainDead = 0
		id := k.finishOne(p, true)
		k.wantPruned(10*365*24*time.Hour, 0)
		k.wantState(id, backends.StateDead)
	},
	"UnfinishedJobsAreNeverPruned": func(k *kit) {
		k.enqueuePayloads("a")
		k.enqueue(backends.NewJob{Queue: "q", Delay: time.Hour})
		k.AdvanceClock(10 * 365 * 24 * time.Hour)
		if r := k.maintain(backends.Maintenance{Prune: true}); r.Pruned != 0 || r.Promoted != 1 {
			k.Errorf("%+v", r)
		}
		if n := len(k.claim(9)); n != 2 {
			k.Errorf("%d jobs are left, want 2", n)
		}
	},
	"PruneDeletesOnlyExpiredJobs": func(k *kit) { // beside jobs that must stay
		keep := func(d, dead time.Duration) backends.Policy {
			p := policy("q")
			p.RetainDone, p.RetainDead = d, dead
			return p
		}
		expired := []string{k.finishOne(keep(time.Hour, 0), false), k.finishOne(keep(0, time.Hour), true)}
		stays := map[string]backends.State{
			k.finishOne(keep(time.Hour+time.Second, 0), false): backends.StateDone,
			k.finishOne(keep(0, time.Hour+time.Second), true):  backends.StateDead,
			k.finishOne(keep(0, 0), true):                      backends.StateDead,
		}
		stays[k.enqueuePayloads("claimed")[0]] = backends.StateClaimed
		k.claimOne()
		stays[k.enqueuePayloads("ready")[0]] = backends.StateReady
		stays[k.enqueue(backends.NewJob{Queue: "q", Delay: 2 * time.Hour})[0]] = backends.StateScheduled
		k.wantPruned(time.Hour, len(expired))
		for _, id := range expired {
			k.wantState(id, backends.StateDeleted)
		}
		for id, state := range stays {
			k.wantState(id, state)
		}
	},
	"RetentionIsThatOfTheClaim": func(k *kit) {
		short, long := policy("q"), policy("q")
		short.RetainDone, long.RetainDone = 0, time.Hour
		k.enqueuePayloads(numbered(3)...)
		before := k.commit(k.claimBatch(me, 1, 0, short)).Claims[0].Jobs // then the config changes
		during := k.commit(k.claimBatch(me, 1, 0, long)).Claims[0].Jobs
		after := k.commit(k.claimBatch(me, 1, 0, short)).Claims[0].Jobs
		k.writeLosing(backends.Ack{Leases: leasesOf(append(append(before, during...), after...)...)}, 0)
		k.wantState(before[0].ID, backends.StateDeleted)
		k.wantState(during[0].ID, backends.StateDone)
		k.wantState(after[0].ID, backends.StateDeleted)
		k.wantPruned(time.Hour, 1)
	},
	"ConcurrentPrunes": func(k *kit) {
		const n = 30
		p := policy("q")
		p.RetainDone = time.Hour
		k.enqueuePayloads(numbered(n)...)
		k.writeLosing(backends.Ack{Leases: leasesOf(k.commit(k.claimBatch(me, n, 0, p)).Claims[0].Jobs...)}, 0)
		k.AdvanceClock(time.Hour)
		var pruned atomic.Int64
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				for pruned.Load() < n && k.Context().Err() == nil { // a pruner skips rows that another one has locked
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
	"PruneInBatches": func(k *kit) {
		p := policy("q")
		p.RetainDone = time.Hour
		k.enqueuePayloads(numbered(5)...)
		k.writeLosing(backends.Ack{Leases: leasesOf(k.commit(k.claimBatch(me, 5, 0, p)).Claims[0].Jobs...)}, 0)
		k.AdvanceClock(time.Hour)
		total := 0
		for range 3 {
			r := k.maintain(backends.Maintenance{Prune: true, PruneBatch: 2})
			if r.PruneOverdue != 0 || r.More {
				k.Errorf("overdue for %v, more: %v", r.PruneOverdue, r.More)
			}
			if total += r.Pruned; r.PruneMore != (total < 5) || r.LongestPrune <= 0 {
				k.Errorf("after %d: more %v, longest %v", total, r.PruneMore, r.LongestPrune)
			}
		}
		if total != 5 {
			k.Errorf("%d pruned, want 5", total)
		}
	},
}
