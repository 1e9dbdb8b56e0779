package network

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestPostgresNoJobWaitsForASlowHost checks two hosts that prefetch from one busy queue. When the
// workers of one are stuck, its prefetched jobs go to the other one, whose workers are idle.
func TestPostgresNoJobWaitsForASlowHost(t *testing.T) {
	s, _ := kit.NewPostgresSite(t)
	noJobWaitsForASlowHost(t, s)
}

func noJobWaitsForASlowHost(t *testing.T, s *kit.Site) {
	t.Helper()
	const workers, busy, rounds, jobs = 8, 2000, 4, 60
	slow, fast := s.Start("slow"), s.Start("fast")
	c := &crowd{t: t, queue: "mail", stop: make(chan struct{}), gate: make(chan struct{})}
	for range workers {
		c.group.Go(func() { c.worker(slow.Socket, true) })
		c.group.Go(func() { c.worker(fast.Socket, false) })
	}
	producer := fast.Dial()
	settled := func(n int) {
		t.Helper()
		kit.WaitProgress(t, "all jobs are done that no stuck worker has", func() (now int, done bool) {
			now = int(c.settled.Load())
			return now, now+int(c.held.Load()) >= n
		})
	}
	producer.Enqueue(c.queue, busy) // both hosts are busy and prefetch
	settled(busy)
	c.stuck.Store(true)
	for round := range rounds {
		producer.Enqueue(c.queue, jobs)
		settled(busy + (round+1)*jobs)
	}
	held := c.held.Load()
	close(c.gate)
	testwait.Until(t, "the stuck workers' jobs are done", func() bool { return c.settled.Load() == busy+rounds*jobs })
	close(c.stop)
	c.group.Wait()
	kit.Figure(t, "two hosts on one queue: while %d workers of one were stuck, the other did all other jobs", held)
}

// crowd is the workers of both hosts.
type crowd struct {
	t       testing.TB
	queue   string
	stop    chan struct{}
	group   sync.WaitGroup
	stuck   atomic.Bool   // the slow ones keep their next job until gate is closed
	gate    chan struct{} //
	held    atomic.Int64
	settled atomic.Int64
}

// worker claims and acks one job at a time.
func (c *crowd) worker(socket string, slow bool) {
	w, err := kit.DialWire(socket)
	if err != nil {
		c.t.Error(err)
		return
	}
	defer w.Close()
	for {
		select {
		case <-c.stop:
			return
		default:
		}
		r, err := w.Call(kit.Msg{"op": "claim", "queue": c.queue, "wait_ms": 300})
		if err != nil || r.Error != nil {
			c.t.Errorf("claim: %v %v", r, err)
			return
		}
		if len(r.Jobs) == 0 {
			continue
		}
		held := slow && c.stuck.Load()
		if held {
			c.held.Add(1)
			<-c.gate
		}
		if r, err = w.Call(kit.Msg{"op": "ack", "lease": r.Jobs[0].Lease}); err != nil || r.Error != nil {
			c.t.Errorf("ack: %v %v", r, err)
			return
		}
		c.settled.Add(1)
		if held {
			c.held.Add(-1)
		}
	}
}
