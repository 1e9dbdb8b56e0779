package backendtest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// enqueueMany stores n jobs with the payloads "0" to n-1.
func (k *kit) enqueueMany(n int) {
	k.Helper()
	for from := 0; from < n; from += 500 {
		var jobs []backends.NewJob
		for i := from; i < min(n, from+500); i++ {
			jobs = append(jobs, backends.NewJob{Queue: "q", Payload: fmt.Append(nil, i)})
		}
		k.enqueue(jobs...)
	}
}

// claimCounts counts how often each job was claimed.
type claimCounts struct {
	mu        sync.Mutex
	byPayload map[string]int
}

func (c *claimCounts) add(jobs []backends.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range jobs {
		c.byPayload[string(j.Payload)]++
	}
}

func (c *claimCounts) check(k *kit, n int) {
	k.Helper()
	if len(c.byPayload) != n {
		k.Errorf("%d jobs were claimed, want %d", len(c.byPayload), n)
	}
	for p, times := range c.byPayload {
		if times != 1 {
			k.Errorf("job %s was claimed %d times", p, times)
		}
	}
}

// settled repeats an ack that its commit set aside because of another transaction's lock, and returns how many leases were valid.
func (k *kit) settled(b backends.Backend, leases []backends.Lease, res backends.WriteResult) int64 {
	for res.Err != nil {
		r, err := b.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leases}}, WaitForLocks: true})
		if err != nil {
			k.Error(err)
			return 0
		}
		res = r.Writes[0]
	}
	return int64(len(leases) - len(res.Lost))
}

// claimAndAckAll runs workers until no job is left. Each acks its jobs in the same commit as its
// next claim.
func (k *kit) claimAndAckAll(n, workers, batch int) {
	k.enqueueMany(n)
	second := k.OpenAnother()
	k.join(second, other)
	s := claimCounts{byPayload: map[string]int{}}
	var settled atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		b, sidecar := []backends.Backend{k.Backend, second}[w%2], []backends.Identity{me, other}[w%2]
		wg.Go(func() {
			var last []backends.Lease
			for {
				batch := k.claimBatch(sidecar, batch, 0, policy("q"))
				if len(last) > 0 {
					batch.Writes = []backends.Write{backends.Ack{Leases: last}}
				}
				r, err := b.Commit(k.Context(), batch)
				if err != nil {
					k.Errorf("worker %d: %v", w, err)
					return
				}
				if len(last) > 0 {
					settled.Add(k.settled(b, last, r.Writes[0]))
				}
				jobs := r.Claims[0].Jobs
				s.add(jobs)
				if last = leasesOf(jobs...); len(last) == 0 {
					return
				}
			}
		})
	}
	wg.Wait()
	s.check(k, n)
	if settled.Load() != int64(n) {
		k.Errorf("%d settled, want %d", settled.Load(), n)
	}
	if st := k.stats(); st.Ready+st.Claimed+st.Scheduled+st.Dead != 0 {
		k.Errorf("left over: %+v", st)
	}
}

var concurrencyTests = map[string]func(*kit){
	"ConcurrentClaimsShareNoJob": func(k *kit) {
		const n = 200
		k.enqueueMany(n)
		second := k.OpenAnother()
		s := claimCounts{byPayload: map[string]int{}}
		var wg sync.WaitGroup
		for i := range 8 {
			b := []backends.Backend{k.Backend, second}[i%2]
			wg.Go(func() {
				for {
					r, err := b.Commit(k.Context(), k.claimBatch(me, 3, 0, policy("q")))
					if err != nil {
						k.Error(err)
						return
					}
					if len(r.Claims[0].Jobs) == 0 {
						return
					}
					s.add(r.Claims[0].Jobs)
				}
			})
		}
		wg.Wait()
		s.check(k, n)
	},
	"WorkersSettleEachJobOnce": func(k *kit) {
		n := 300
		if largeRuns {
			n = 10_000
		}
		k.claimAndAckAll(n, 16, 1)
	},
	"WorkersSettleEachJobOnceInBatches": func(k *kit) { k.claimAndAckAll(600, 16, 20) },
	"ProducersAndConsumers": func(k *kit) {
		const producers, each, queues = 4, 50, 2
		s := claimCounts{byPayload: map[string]int{}}
		var produced sync.WaitGroup
		for p := range producers {
			produced.Go(func() {
				for i := range each {
					j := backends.NewJob{Queue: "q", Payload: fmt.Appendf(nil, "%d-%d", p, i), Priority: int16(i % queues)}
					if _, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{j}}}}); err != nil {
						k.Error(err)
					}
				}
			})
		}
		var producersDone atomic.Bool
		go func() { produced.Wait(); producersDone.Store(true) }()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for last := false; ; {
					r, err := k.Commit(k.Context(), k.claimBatch(me, 2, 0, policy("q")))
					if err != nil {
						k.Error(err)
						return
					}
					s.add(r.Claims[0].Jobs)
					if len(r.Claims[0].Jobs) > 0 {
						continue
					}
					if last { // a whole claim after the last producer found nothing
						return
					}
					last = producersDone.Load()
				}
			})
		}
		wg.Wait()
		s.check(k, producers*each)
	},
	"EitherReapOrSettleWins": func(k *kit) {
		// The lease has expired. Either the ack or the maintenance gets the job, never both.
		second := k.OpenAnother()
		for range 20 {
			k.enqueuePayloads("a")
			j := k.claimTimed(time.Second, 0)
			k.AdvanceClock(2 * time.Second)
			var acked, reaped atomic.Int64
			var wg sync.WaitGroup
			wg.Go(func() {
				r, err := second.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(j)}}})
				if err != nil {
					k.Error(err)
					return
				}
				acked.Add(k.settled(second, leasesOf(j), r.Writes[0]))
			})
			wg.Go(func() {
				r, err := k.Maintain(k.Context(), backends.Maintenance{Limit: 10})
				if err != nil {
					k.Error(err)
					return
				}
				reaped.Add(int64(r.Reaped[backends.CauseLeaseEnded]))
			})
			wg.Wait()
			if acked.Load()+reaped.Load() != 1 {
				k.Fatalf("%d acked and %d reaped, want one of them", acked.Load(), reaped.Load())
			}
			if reaped.Load() == 1 {
				k.writeLosing(backends.Ack{Leases: leasesOf(k.claimOne())}, 0)
			}
		}
	},
	"NoClaimAfterAPause": func(k *kit) {
		k.enqueueMany(400)
		var paused atomic.Bool
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					late := paused.Load() // the claim begins after the pause was answered
					r, err := k.Commit(k.Context(), k.claimBatch(me, 1, 0, policy("q")))
					if err != nil {
						k.Error(err)
						return
					}
					if n := len(r.Claims[0].Jobs); n == 0 {
						return
					} else if late {
						k.Error("a job was claimed after the pause")
						return
					}
				}
			})
		}
		k.operate(backends.Command{Kind: backends.Pause, Queue: "q"}, 0, false)
		paused.Store(true)
		wg.Wait()
	},
	"HeartbeatsPassUnderLoad": func(k *kit) {
		// The other writers run until all heartbeats are answered.
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					j := backends.NewJob{Queue: "p", Payload: make([]byte, 1000), Priority: int16(i)}
					if _, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{j, j, j}}}}); err != nil {
						k.Error(err)
						return
					}
				}
			})
		}
		ctx := testwait.Context(k)
		for range 20 {
			if p, err := k.Heartbeat(ctx, backends.Heartbeat{Sidecar: me, Kind: backends.HeartbeatRenew, Name: "test", Timeout: sidecarTimeout}); err != nil || !p.Alive {
				k.Errorf("a heartbeat under load: %+v, %v", p, err)
			}
		}
		close(stop)
		wg.Wait()
	},
}
