package backendtest

import (
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

var maintenanceTests = map[string]func(*kit){
	"NothingToDo": func(k *kit) {
		k.enqueuePayloads("a")
		k.claimOne()
		r := k.maintain(backends.Maintenance{Waiting: []string{"q", "none"}, Prune: true})
		if len(r.Ready)+len(r.MadeReady)+r.Promoted+len(r.Reaped)+r.Pruned != 0 || r.More || r.Next >= 0 {
			k.Errorf("%+v, want nothing", r)
		}
	},
	"ReportsReadyQueues": func(k *kit) {
		k.enqueuePayloads("a")
		k.enqueue(backends.NewJob{Queue: "p"}, backends.NewJob{Queue: "late", Delay: time.Hour})
		k.operate(backends.Command{Kind: backends.Pause, Queue: "q"}, 0, false)
		r := k.maintain(backends.Maintenance{Waiting: []string{"late", "q", "none"}})
		if !slices.Equal(r.Ready, []string{"q"}) {
			k.Errorf("ready in %v, want q although it is paused, and not p, which Waiting does not list", r.Ready)
		}
	},
	"PromotedJobsAreReportedReady": func(k *kit) {
		k.enqueue(backends.NewJob{Queue: "q", Delay: time.Second}, backends.NewJob{Queue: "p", Delay: time.Second}, backends.NewJob{Queue: "q", Delay: time.Second})
		k.AdvanceClock(time.Minute)
		r := k.maintain(backends.Maintenance{Waiting: []string{"q"}})
		slices.Sort(r.MadeReady)
		if !slices.Equal(r.MadeReady, []string{"p", "q"}) || !slices.Equal(r.Ready, []string{"q"}) || r.Promoted != 3 || r.Next >= 0 {
			k.Errorf("%+v", r)
		}
	},
	"NextIsTheEarliestDueTime": func(k *kit) {
		next := func(want time.Duration) {
			k.Helper()
			if r := k.maintain(backends.Maintenance{}); r.Next > want || r.Next < want-time.Second*3/4 {
				k.Errorf("next in %v, want %v", r.Next, want)
			}
		}
		k.enqueue(backends.NewJob{Queue: "q", Delay: time.Hour}, job("a", 0), job("b", 0))
		next(time.Hour)
		k.claimTimed(30*time.Minute, 0)
		next(30 * time.Minute)
		j := k.claimTimed(0, 10*time.Minute)
		next(10 * time.Minute)
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0)
		next(30 * time.Minute)
	},
	"NextIgnoresTimesOutOfRange": func(k *kit) { // further than the range of time.Duration
		k.enqueue(backends.NewJob{Queue: "q", Delay: time.Hour}, backends.NewJob{Queue: "p", RunAt: time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)})
		if r := k.maintain(backends.Maintenance{}); r.Next > time.Hour || r.Next < time.Hour-time.Second {
			k.Errorf("next in %v, want an hour", r.Next)
		}
	},
	"ConcurrentMaintenancePromotesEachJobOnce": func(k *kit) {
		const n = 60
		jobs := make([]backends.NewJob, n)
		for i := range jobs {
			jobs[i] = backends.NewJob{Queue: "q", Delay: time.Second}
		}
		k.enqueue(jobs...)
		k.AdvanceClock(time.Minute)
		second := k.OpenAnother()
		var mu sync.Mutex
		promoted := 0
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				b := []backends.Backend{k.Backend, second}[i%2]
				for more := true; more; {
					r, err := b.Maintain(k.Context(), backends.Maintenance{Limit: 7})
					if err != nil {
						k.Error(err)
						return
					}
					mu.Lock()
					promoted += r.Promoted
					mu.Unlock()
					more = r.More
				}
			})
		}
		wg.Wait()
		if got := len(k.claim(2 * n)); promoted != n || got != n {
			k.Errorf("%d promoted and %d claimed, want %d", promoted, got, n)
		}
	},
	"ReapInBatches": func(k *kit) {
		k.enqueuePayloads(numbered(5)...)
		k.commit(k.claimBatch(me, 5, time.Second, policy("q")))
		k.AdvanceClock(time.Minute)
		total := 0
		for range 3 {
			r := k.maintain(backends.Maintenance{Limit: 2})
			total += r.Reaped[backends.CauseLeaseEnded]
			if r.More != (total < 5) {
				k.Errorf("more is %v after %d", r.More, total)
			}
		}
		if total != 5 {
			k.Errorf("%d reaped, want 5", total)
		}
	},
}
