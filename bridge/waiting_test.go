package bridge

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// asked is a database that counts the slots of the claims that it gets.
type asked struct {
	*memory.Backend
	slots, claims atomic.Int64
}

func (a *asked) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	for _, c := range b.Claims {
		a.slots.Add(int64(len(c.Slots)))
		a.claims.Add(1)
	}
	return a.Backend.Commit(ctx, b)
}

// manyWait starts that many waiting claims for the queue q, on sessions that claim again when they get a job.
func manyWait(t testing.TB, s *sidecar, claims int) (got *atomic.Int64) {
	got = new(atomic.Int64)
	for i := 0; i < claims; {
		c := s.dial(t)
		var text []byte
		for n := 0; n < 250 && i < claims; n++ {
			text = fmt.Appendf(text, `{"op":"claim","id":%d,"queue":"q","wait_ms":3600000}`+"\n", i)
			i++
		}
		go func() {
			for {
				if _, err := c.conn.Write(text); err != nil {
					return
				}
				line, err := c.in.ReadBytes('\n')
				if err != nil {
					return
				}
				r := parse(t, line)
				if text = nil; len(r.Jobs) > 0 {
					got.Add(int64(len(r.Jobs)))
					text = fmt.Appendf(text, `{"op":"ack","lease":%q,"id":"a"}`+"\n"+`{"op":"claim","id":%v,"queue":"q","wait_ms":3600000}`+"\n", r.Jobs[0].Lease, r.ID)
				}
			}
		}()
	}
	eventually(t, func() bool { return s.pipeline().Snapshot().IdleClaims == claims })
	return got
}

// TestWakeUpsCostByJobs shows that an enqueue causes claims for as many jobs as it stored, and one more, however many
// claims wait. Every job that many producers store at once is claimed.
func TestWakeUpsCostByJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiting, jobs = 2000, 20
		db := &asked{Backend: memory.New()}
		s := start(t, options(db))
		got := manyWait(t, s, waiting)
		p := s.dial(t)
		before := db.slots.Load()
		for i := range jobs {
			p.call(`{"op":"enqueue","queue":"q"}`)
			eventually(t, func() bool { return got.Load() == int64(i+1) })
		}
		synctest.Wait()
		each := float64(db.slots.Load()-before) / jobs
		t.Logf("with %d claims waiting an enqueue of one job asks for %.1f jobs", waiting, each)
		if each > 8 { // includes the next claim of the worker that got the job
			t.Errorf("an enqueue of one job asks for %.1f jobs, and %d claims wait", each, waiting)
		}
		for i := range 500 {
			p.send(`{"op":"enqueue","queue":"q","id":%d}`, i)
		}
		eventually(t, func() bool { return got.Load() == jobs+500 })
		store(t, db, times("q", 300)...) // like a plain INSERT: no notification contains their number
		eventually(t, func() bool { return got.Load() == jobs+500+300 })
	})
}

func times(queue string, n int) (all []string) {
	for range n {
		all = append(all, queue)
	}
	return all
}

// TestIdleWaitQueuesAreDropped shows that ended claims leave nothing behind, whatever their queues.
func TestIdleWaitQueuesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c := s.dial(t)
		const names = 3000
		for i := range names {
			c.call(`{"op":"claim","queue":"q%d"}`, i)
			c.call(`{"op":"claim","queue":"w%d","wait_ms":1}`, i)
		}
		left := func() int { return s.pipeline().Snapshot().WaitQueues }
		if n := left(); n > 0 {
			t.Errorf("%d lines are left of %d claims", n, 2*names)
		}
		for i := range 100 { // wait queues stay for a while, in case more jobs are taken
			c.call(`{"op":"enqueue","queue":"q%d"}`, i)
			c.claim1(fmt.Sprint("q", i))
		}
		time.Sleep(time.Second)
		if n := left(); n > 0 {
			t.Errorf("%d lines are left of claims that brought jobs", n)
		}
	})
}

// BenchmarkEnqueueBesideWaitingClaims measures an enqueue with few claims waiting, and with many.
func BenchmarkEnqueueBesideWaitingClaims(b *testing.B) {
	for _, waiting := range []int{10, 5000} {
		b.Run(fmt.Sprint(waiting), func(b *testing.B) {
			s := start(b, options(memory.New()))
			manyWait(b, s, waiting)
			p := s.dial(b)
			for b.Loop() {
				p.call(`{"op":"enqueue","queue":"q"}`)
			}
		})
	}
}

// BenchmarkClaimAfterManyNames measures a claim after that many ended claims of other queues.
func BenchmarkClaimAfterManyNames(b *testing.B) {
	for _, names := range []int{0, 30_000} {
		b.Run(fmt.Sprint(names), func(b *testing.B) {
			s := start(b, options(memory.New()))
			c := s.dial(b)
			for i := range names {
				c.call(`{"op":"claim","queue":"q%d"}`, i)
			}
			for b.Loop() {
				c.call(`{"op":"claim","queue":"none"}`)
			}
		})
	}
}
