package bridge

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// busyQueue lets workers claim and ack one job at a time until some of the queue's jobs are prefetched, and returns
// the clients. Every job is worked once.
func busyQueue(t *testing.T, s *sidecar, queue string) []*client {
	t.Helper()
	p := s.dial(t)
	for range 6 {
		jobs := ""
		for i := range 100 {
			if i > 0 {
				jobs += ","
			}
			jobs += fmt.Sprintf(`{"queue":%q}`, queue)
		}
		p.call(`{"op":"enqueue","jobs":[%s]}`, jobs)
	}
	var stop atomic.Bool
	var seen sync.Map
	var wg sync.WaitGroup
	clients := make([]*client, 8)
	for i := range clients {
		c := s.dial(t)
		clients[i] = c
		wg.Go(func() {
			for !stop.Load() {
				r := c.call(`{"op":"claim","queue":%q}`, queue)
				if len(r.Jobs) == 0 {
					return
				}
				j := r.Jobs[0]
				if _, dup := seen.LoadOrStore(j.ID, true); dup || j.Attempt != 1 {
					t.Errorf("job %s delivered again, attempt %d", j.ID, j.Attempt)
				}
				c.call(`{"op":"ack","lease":%q}`, j.Lease)
				if s.prefetched() > 10 {
					stop.Store(true)
				}
			}
		})
	}
	wg.Wait()
	if !stop.Load() {
		t.Fatal("nothing was ever claimed ahead for a busy line")
	}
	return clients
}

// prefetched counts the prefetched jobs.
func (s *sidecar) prefetched() int { return s.pipeline().Snapshot().Prefetched }

// slow makes every commit take a moment of the virtual clock, as a disk does. Otherwise prefetch is not worth it.
func slow(b backends.CommitContent, _ backends.Results) error {
	if len(b.Writes) > 0 {
		time.Sleep(time.Millisecond)
	}
	return nil
}

func prefetchingSidecar(t *testing.T) (*sidecar, *faulty) {
	db := &faulty{Backend: memory.New()}
	f := slow
	db.after.Store(&f)
	return start(t, options(db)), db
}

func TestUnclaimedPrefetchedJobsAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := prefetchingSidecar(t)
		c := busyQueue(t, s, "q")[0]
		eventually(t, func() bool { return s.prefetched() == 0 })
		eventually(t, func() bool {
			q := c.call(`{"op":"stats","queue":"q"}`).Queues[0]
			return q["claimed"] == float64(0) && q["ready"].(float64) > 0
		})
		if j := c.claim1("q"); j.Attempt != 1 || j.LastError != "" {
			t.Errorf("got %+v, want attempt 1: a prefetched job has used up no attempt", j)
		}
	})
}

func TestHandOutOfAPrefetchedJobIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := prefetchingSidecar(t)
		clients := busyQueue(t, s, "q")
		c, other := clients[0], clients[1]
		c.call(`{"op":"hello","worker":"w1"}`)
		if s.prefetched() == 0 {
			t.Fatal("the buffer is empty already")
		}
		r := c.call(`{"op":"claim","queue":"q"}`)
		id := r.Jobs[0].ID
		eventually(t, func() bool { return other.workerOf("q", id) == "w1" })
		c.close()
		eventually(t, func() bool {
			for _, j := range other.call(`{"op":"claim","queue":"q","max":1000}`).Jobs {
				if j.ID == id {
					if j.Attempt != 2 {
						t.Errorf("attempt %d after its worker died, want 2", j.Attempt)
					}
					return true
				}
			}
			return false
		})
	})
}

// workerOf returns the worker that peek shows for a job.
func (c *client) workerOf(queue, id string) string {
	r := c.call(`{"op":"peek","queue":%q,"ids":[%q]}`, queue, id)
	if len(r.Jobs) != 1 {
		c.t.Fatalf("peek of %s: %+v", id, r.Jobs)
	}
	return r.Jobs[0].Worker
}

// TestPrefetchMakesNoQueueLookEmpty shows that a claim that can't use the prefetched jobs (a timed lease, other queues
// in it) still gets a job.
func TestPrefetchMakesNoQueueLookEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := prefetchingSidecar(t)
		for _, claim := range []string{
			`{"op":"claim","queue":"q","lease_ms":60000,"max":1000}`,
			`{"op":"claim","queues":["r","q"],"max":1000}`,
		} {
			c := busyQueue(t, s, "q")[0]
			all := 0
			for {
				n := len(c.call("%s", claim).Jobs)
				if all += n; n == 0 {
					break
				}
			}
			if q := c.call(`{"op":"stats","queue":"q"}`).Queues[0]; q["ready"] != float64(0) || q["claimed"].(float64) < float64(all) {
				t.Errorf("%s: empty after %d jobs, with %v left", claim, all, q)
			}
			if left := s.prefetched(); left > 0 {
				t.Errorf("%s: empty while %d jobs lie claimed ahead", claim, left)
			}
		}
	})
}

// returns is a database that takes claims and writes at the same time. Releases wait for the gate.
type returns struct {
	*faulty
	came atomic.Bool // a release waits
	gate chan struct{}
}

func (r *returns) Info() backends.Info {
	i := r.faulty.Info()
	i.Concurrent = true
	return i
}

func (r *returns) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	for _, w := range b.Writes {
		if _, is := w.(backends.Release); is {
			r.came.Store(true)
			<-r.gate
		}
	}
	return r.faulty.Commit(ctx, b)
}

// TestNoQueueLooksEmptyWhileItsJobsComeBack shows that a claim that the database has no job for waits for prefetched
// jobs that are on their way back.
func TestNoQueueLooksEmptyWhileItsJobsComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &returns{faulty: &faulty{Backend: memory.New()}, gate: make(chan struct{})}
		f := slow
		db.after.Store(&f)
		s := start(t, options(db))
		c := busyQueue(t, s, "q")[0]
		c.call(`{"op":"purge","queue":"q","state":"ready"}`)
		eventually(t, db.came.Load)
		c.send(`{"op":"claim","queue":"q"}`)
		synctest.Wait() // the database has answered that there is none
		close(db.gate)
		if r := c.receive(); len(r.Jobs) != 1 {
			t.Errorf("answered %+v, want a job that came back", r)
		}
	})
}

// TestPausedQueueHandsOutNoPrefetchedJob shows that a pause applies to prefetched jobs within a second of its
// reply.
func TestPausedQueueHandsOutNoPrefetchedJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := prefetchingSidecar(t)
		c := busyQueue(t, s, "q")[0]
		c.call(`{"op":"pause","queue":"q"}`)
		answered := time.Now()
		for asked := answered; len(c.call(`{"op":"claim","queue":"q"}`).Jobs) > 0; asked = time.Now() {
			if asked.Sub(answered) > time.Second {
				t.Fatal("a paused queue gave out a job to who asked after a second")
			}
		}
	})
}

// TestDrainReturnsPrefetchedJobs shows that prefetched jobs are ready again when the sidecar is gone.
func TestDrainReturnsPrefetchedJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, db := prefetchingSidecar(t)
		busyQueue(t, s, "q")
		s.stop()
		if err := s.wait(t); err != nil {
			t.Fatal(err)
		}
		o := options(db)
		c := start(t, o).dial(t)
		if q := c.call(`{"op":"stats","queue":"q"}`).Queues[0]; q["claimed"] != float64(0) {
			t.Errorf("left claimed by an orderly exit: %v", q)
		}
	})
}

// TestDrainRecordsHandOuts shows that the attempt of a job that a worker got right before an orderly exit counts.
func TestDrainRecordsHandOuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, db := prefetchingSidecar(t)
		c := busyQueue(t, s, "q")[0]
		if s.prefetched() == 0 {
			t.Fatal("the buffer is empty already")
		}
		id := c.call(`{"op":"claim","queue":"q"}`).Jobs[0].ID
		s.stop()
		s.Abort() // do not wait for the worker
		if err := s.wait(t); err != nil {
			t.Fatal(err)
		}
		next := start(t, options(db)).dial(t)
		if j := next.call(`{"op":"peek","queue":"q","ids":[%q]}`, id).Jobs[0]; j.Attempt != 1 {
			t.Errorf("the job in its worker's hands shows %d attempts, want 1", j.Attempt)
		}
	})
}

// TestNoJobStaysWithAClaimThatIsOver shows that a claim that is cancelled during a commit uses none of the jobs that
// are prefetched for others.
func TestNoJobStaysWithAClaimThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, db := prefetchingSidecar(t)
		c := busyQueue(t, s, "q")[0]
		c.call(`{"op":"purge","queue":"q","state":"ready"}`)
		gate := make(chan struct{})
		db.block.Store(&gate)
		c.send(`{"op":"claim","queues":["r","q"],"wait_ms":60000,"id":1}`)
		synctest.Wait()
		if s.prefetched() == 0 {
			t.Fatal("the buffer is empty already")
		}
		c.send(`{"op":"cancel_claim","request":1,"id":2}`)
		synctest.Wait()
		db.block.Store(nil)
		close(gate)
		c.receive()
		c.receive()
		eventually(t, func() bool {
			return c.call(`{"op":"stats","queue":"q"}`).Queues[0]["claimed"] == float64(0)
		})
		if r := c.call(`{"op":"claim","queue":"none"}`); len(r.Jobs) > 0 {
			t.Errorf("%+v", r)
		}
	})
}
