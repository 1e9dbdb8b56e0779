package bridge

import (
	"fmt"
	"testing"

	"github.com/qsidecar/qsidecar/backends/memory"
)

func limited(t *testing.T, l Limits) (*sidecar, Options) {
	o := options(t, memory.New())
	o.Limits = l
	return start(t, o), o
}

// busyConnection wants a new connection to be told that there is no place, and closed.
func (s *sidecar) busyConnection(t *testing.T) {
	t.Helper()
	c := s.dial(t)
	if r := c.refused("busy", `{"op":"ping","id":1}`); r.ID != nil {
		t.Errorf("the error of a connection has the id %v", r.ID)
	}
	if _, err := c.line(); err == nil {
		t.Error("a connection over the limit stays open")
	}
}

func TestLimitOfConnections(t *testing.T) {
	s, o := limited(t, Limits{Connections: 2})
	a, b := s.dial(t), s.dial(t)
	a.call(`{"op":"ping"}`)
	b.call(`{"op":"ping"}`)
	s.busyConnection(t)
	a.call(`{"op":"ping"}`)
	b.call(`{"op":"bye"}`)
	eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.sessions) == 1
	})
	s.dial(t).call(`{"op":"ping"}`)
	s.reloads(t, with(o, func(o *Options) { o.Limits = Limits{PerUser: 2} }))
	s.busyConnection(t)
	s.reloads(t, with(o, func(o *Options) { o.Limits = Limits{} }))
	s.dial(t).call(`{"op":"ping"}`)
}

// TestManyConnectionsOverTheLimit: those that say nothing hold nobody up, and nothing of
// them is left.
func TestManyConnectionsOverTheLimit(t *testing.T) {
	s, _ := limited(t, Limits{Connections: 1})
	a := s.dial(t)
	a.call(`{"op":"ping"}`)
	for range 2 * turnedAway {
		s.dial(t)
	}
	a.call(`{"op":"ping"}`)
	eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.refusing == 0
	})
}

func TestLimitOfHeldJobs(t *testing.T) {
	s, _ := limited(t, Limits{Held: 3})
	c, other := s.dial(t), s.dial(t)
	for range 6 {
		c.call(`{"op":"enqueue","queue":"q"}`)
	}
	got := c.call(`{"op":"claim","queue":"q","max":10}`).Jobs
	if len(got) != 3 {
		t.Fatalf("a claim of ten gave %d jobs, want the 3 that it may hold", len(got))
	}
	c.refused("busy", `{"op":"claim","queue":"q"}`)
	c.refused("busy", `{"op":"claim","queue":"q","wait_ms":1000}`)
	if n := len(other.call(`{"op":"claim","queue":"q","max":2}`).Jobs); n != 2 {
		t.Errorf("another connection got %d jobs, want 2", n)
	}
	c.call(`{"op":"ack","lease":%q}`, got[0].Lease)
	c.claim1("q")
}

func TestLimitOfNames(t *testing.T) {
	o := options(t, memory.New())
	o.Limits.QueueNames = 2
	o.Queues["named"] = Queue{}
	c := start(t, o).dial(t)
	for _, q := range []string{"a", "b", "a", "named"} {
		c.call(`{"op":"enqueue","queue":%q}`, q)
	}
	c.refused("busy", `{"op":"enqueue","queue":"c"}`)
	c.claim1("b")
}

func TestLimitOfReadyJobs(t *testing.T) {
	o := options(t, memory.New())
	o.Queues["q"] = Queue{MaxReady: 3}
	s := start(t, o)
	c := s.dial(t)
	c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"}]}`)
	c.refused("busy", `{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"}]}`)
	c.call(`{"op":"enqueue","queue":"q"}`)
	if r := c.refused("busy", `{"op":"enqueue","queue":"q"}`); r.Error.RetryMS != depthAge.Milliseconds() {
		t.Errorf("it says to try again after %d ms", r.Error.RetryMS)
	}
	c.call(`{"op":"enqueue","queue":"free"}`)
	j := c.claim1("q")
	c.refused("busy", `{"op":"ack","lease":%q,"enqueue":[{"queue":"q"},{"queue":"q"}]}`, j.Lease)
	c.call(`{"op":"ack","lease":%q}`, j.Lease)
	eventually(t, func() bool { // as of a second ago
		c.send(`{"op":"enqueue","queue":"q"}`)
		return c.receive().OK
	})
}

// TestLimitsHarmNobodyElse: while one client is over each limit others go on.
func TestLimitsHarmNobodyElse(t *testing.T) {
	o := options(t, memory.New())
	o.Limits = Limits{Connections: 40, Held: 5, QueueNames: 3}
	o.Queues["full"] = Queue{MaxReady: 1}
	o.Queues["work"] = Queue{}
	s := start(t, o)
	offender := s.dial(t)
	offender.call(`{"op":"enqueue","queue":"full"}`)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			for _, line := range []string{
				`{"op":"enqueue","queue":"full"}`, fmt.Sprintf(`{"op":"enqueue","queue":"made-up-%d"}`, n), `{"op":"claim","queue":"full","max":1000}`,
			} {
				offender.send("%s", line)
				if _, err := offender.line(); err != nil {
					t.Errorf("the offender: %v", err)
					return
				}
			}
		}
	}()
	for range 8 {
		c := s.dial(t)
		for range 50 {
			c.call(`{"op":"enqueue","queue":"work"}`)
			c.call(`{"op":"ack","lease":%q}`, c.claim1("work").Lease)
		}
	}
	close(stop)
	<-done
}
