package network

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// limitedWork is how long a job of TestLimitsOverFourHosts takes.
const limitedWork = 50 * time.Millisecond

// TestLimitsOverFourHosts checks the limits of queues over four sidecars on PostgreSQL. It prints how much of them is used.
func TestLimitsOverFourHosts(t *testing.T) {
	t.Parallel()
	s, p := kit.NewPostgresSite(t)
	hosts := []*kit.Sidecar{s.Start("a"), s.Start("b"), s.Start("c"), s.Start("d")}
	operator := hosts[0].Dial()

	t.Run("cap", func(t *testing.T) {
		const limit = 3
		jobs := kit.Size(1000)
		free := workAll(t, hosts[:1], "free", limit, jobs, limit)
		operator.Must(kit.Msg{"op": "limit", "queue": "capped", "max_claimed": limit})
		capped := workAll(t, hosts, "capped", limit, jobs, limit)
		kit.Figure(t, "%d jobs of %v: %d workers take %v, and 12 workers on four hosts with a cap of %d take %v: %.1f %%",
			jobs, limitedWork, limit, free, limit, capped, 100*free.Seconds()/capped.Seconds())
	})
	t.Run("rate", func(t *testing.T) {
		const rate, burst = 100, 100 // the default burst
		seconds := kit.Size(60)
		operator.Must(kit.Msg{"op": "limit", "queue": "rated", "rate": fmt.Sprintf("%d/s", rate)})
		operator.Enqueue("rated", 2*rate*seconds)
		var all sync.WaitGroup
		end := time.NewTimer(time.Duration(seconds) * time.Second)
		over := make(chan struct{})
		for i := range 12 {
			c := hosts[i%4].Dial()
			all.Go(func() {
				for {
					select {
					case <-over:
						return
					default:
						c.Must(kit.Msg{"op": "claim", "queue": "rated", "max": 5, "lease_ms": 3_600_000, "wait_ms": 500})
					}
				}
			})
		}
		<-end.C
		close(over)
		all.Wait()
		var starts []float64
		for _, at := range p.Query(s.URL, "SELECT extract(epoch FROM claimed_at)::text FROM qsidecar.qsidecar_jobs WHERE queue = 'rated' AND state = 'claimed' ORDER BY claimed_at") {
			x, err := strconv.ParseFloat(at, 64)
			if err != nil {
				t.Fatal(err)
			}
			starts = append(starts, x)
		}
		if !slices.IsSorted(starts) || len(starts) == 0 {
			t.Fatalf("%d jobs started", len(starts))
		}
		for i := range starts {
			for k := i; k < len(starts); k++ {
				if window := starts[k] - starts[i]; float64(k-i+1) > burst+rate*window+0.01 {
					t.Fatalf("%d jobs started in %.3f s", k-i+1, window)
				}
			}
		}
		took := starts[len(starts)-1] - starts[0]
		kit.Figure(t, "%d/s over four hosts: %d jobs started in %.2f s: %.1f %%", rate, len(starts), took, 100*float64(len(starts))/(burst+rate*took))
	})
}

// workAll runs n workers on each host until all jobs of the queue are acked, and returns how long that took. No more than limit jobs
// run at a time.
func workAll(t *testing.T, hosts []*kit.Sidecar, queue string, n, jobs, limit int) time.Duration {
	hosts[0].Dial().Enqueue(queue, jobs)
	var all sync.WaitGroup
	var running, done atomic.Int64
	var took atomic.Int64
	began := kit.Monotonic()
	for _, h := range hosts {
		for range n {
			c := h.Dial()
			all.Go(func() {
				for done.Load() < int64(jobs) {
					r := c.Must(kit.Msg{"op": "claim", "queue": queue, "wait_ms": 2000})
					for _, j := range r.Jobs {
						if now := running.Add(1); now > int64(limit) {
							t.Errorf("%d jobs of %s run at a time", now, queue)
						}
						time.Sleep(limitedWork)
						running.Add(-1)
						c.Must(kit.Msg{"op": "ack", "lease": j.Lease})
						if done.Add(1) == int64(jobs) {
							took.Store(int64(kit.Since(began)))
						}
					}
				}
			})
		}
	}
	all.Wait()
	return time.Duration(took.Load())
}
