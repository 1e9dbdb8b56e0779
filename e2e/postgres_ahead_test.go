package e2e

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// look is a worker's idleness: from its asking for a job to its having one.
type look struct{ asked, answered time.Time }

// TestPostgresNoJobWaitsForASlowHost: two hosts on one busy queue that claim
// ahead. One has workers that are slow. A job in that host's buffer must not
// wait while a worker of the other host is idle.
func TestPostgresNoJobWaitsForASlowHost(t *testing.T) {
	s, _ := newPostgresSite(t)
	noJobWaitsForASlowHost(t, s)
}

func noJobWaitsForASlowHost(t *testing.T, s *site) {
	t.Helper()
	work := time.Second
	if soak {
		work = 10 * time.Second
	}
	const workers, busy, rounds, jobs = 8, 4000, 8, 60
	s.hostLease = 30 * time.Second
	slow, fast := s.started("slow"), s.started("fast")
	c := &crowd{t: t, queue: "mail", stop: make(chan struct{}), enqueued: map[string]time.Time{}}
	for range workers {
		c.group.Go(func() { c.worker(slow.socket, nil) })
		c.group.Go(func() { c.worker(fast.socket, &c.looks) })
	}
	producer := fast.dial()
	c.enqueue(producer, busy) // both hosts are busy, and claim ahead
	eventually(t, time.Minute, "the queue was worked off", func() bool { return int(c.settled.Load()) == busy })
	c.work.Store(int64(work))
	for range rounds {
		c.enqueue(producer, jobs)
		pass(work / 2)
	}
	eventually(t, time.Minute+work*rounds, "all jobs were delivered", func() bool { return int(c.settled.Load()) == busy+rounds*jobs })
	close(c.stop)
	c.group.Wait()
	longest := c.longest()
	figure(t, "two hosts on one queue, one with %d workers that take %v a job: the longest that a ready job waited while a worker of the other host idled: %v",
		workers, work, longest.Round(time.Millisecond))
	if most := 2 * time.Second; longest > most {
		t.Errorf("a job waited %v, want at most %v", longest, most)
	}
}

// crowd is the workers of both hosts and what they saw.
type crowd struct {
	t       testing.TB
	queue   string
	stop    chan struct{}
	group   sync.WaitGroup
	work    atomic.Int64 // how long the slow ones take, in ns
	settled atomic.Int64

	mu         sync.Mutex
	enqueued   map[string]time.Time
	looks      []look
	deliveries map[string]time.Time
}

// enqueue stores n jobs and notes since when they are ready, at the latest.
func (c *crowd) enqueue(producer *conn, n int) {
	c.t.Helper()
	ids := producer.enqueueN(c.queue, n)
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		c.enqueued[id] = now
	}
}

// worker claims one and acks it. With looks it is fast, and notes when it waited.
func (c *crowd) worker(socket string, looks *[]look) {
	w, err := dialWire(socket)
	if err != nil {
		c.t.Error(err)
		return
	}
	defer w.Close()
	asked := time.Now()
	for {
		select {
		case <-c.stop:
			c.note(nil, look{asked, time.Now()}, looks)
			return
		default:
		}
		r, err := w.call(msg{"op": "claim", "queue": c.queue, "wait_ms": 300})
		if err != nil || r.Error != nil {
			c.t.Errorf("claim: %v %v", r, err)
			return
		}
		if len(r.Jobs) == 0 {
			continue // it is idle since it asked first
		}
		c.note(r.Jobs, look{asked, time.Now()}, looks)
		if looks == nil {
			pass(time.Duration(c.work.Load()))
		}
		if r, err = w.call(msg{"op": "ack", "lease": r.Jobs[0].Lease}); err != nil || r.Error != nil {
			c.t.Errorf("ack: %v %v", r, err)
			return
		}
		c.settled.Add(1)
		asked = time.Now()
	}
}

func (c *crowd) note(jobs []wireJob, l look, looks *[]look) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if looks != nil {
		*looks = append(*looks, l)
	}
	if c.deliveries == nil {
		c.deliveries = map[string]time.Time{}
	}
	for _, j := range jobs {
		c.deliveries[j.ID] = l.answered
	}
}

// longest is the longest time that a ready job and one waiting claim of the
// other host were both there.
func (c *crowd) longest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := time.Duration(0)
	for id, ready := range c.enqueued {
		at, ok := c.deliveries[id]
		if !ok {
			c.t.Errorf("job %s was never delivered", id)
		}
		for _, l := range c.looks {
			from, to := ready, at
			if l.asked.After(from) {
				from = l.asked
			}
			if l.answered.Before(to) {
				to = l.answered
			}
			most = max(most, to.Sub(from))
		}
	}
	return most
}
