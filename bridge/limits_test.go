package bridge

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/depth"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

func limited(t *testing.T, l Limits) (*sidecar, Options) {
	o := options(memory.New())
	o.Limits = l
	return start(t, o), o
}

// busyConnection fails the test unless a new connection gets the error that a limit is reached, and is closed.
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
	synctest.Test(t, func(t *testing.T) {
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
	})
}

// TestManyConnectionsOverTheLimit shows that silent connections over the limit don't delay others, and leave nothing
// behind.
func TestManyConnectionsOverTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := limited(t, Limits{Connections: 1})
		a := s.dial(t)
		a.call(`{"op":"ping"}`)
		for range 2 * maxRefusals {
			s.dial(t)
		}
		a.call(`{"op":"ping"}`)
		eventually(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.refusing == 0
		})
	})
}

func TestLimitOfClaimedJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := limited(t, Limits{JobsPerConnection: 3})
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
	})
}

// TestLimitOfClaimedJobsIsExact shows that waiting claims of one connection together don't hold more than the limit. A
// claim that waits for quota that other claims don't use gets its job.
func TestLimitOfClaimedJobsIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := limited(t, Limits{JobsPerConnection: 3})
		c, producer := s.dial(t), s.dial(t)
		for i := range 4 {
			c.send(`{"op":"claim","id":%d,"queue":"q","max":2,"wait_ms":20000}`, i)
		}
		c.send(`{"op":"claim","id":4,"queue":"elsewhere","wait_ms":20000}`)
		eventually(t, func() bool { return s.waiting() == 5 })
		synctest.Wait() // each claim was in one commit: later claims would find the quota used up
		jobs := make([]string, 8)
		for i := range jobs {
			jobs[i] = `{"queue":"q"}`
		}
		producer.call(`{"op":"enqueue","jobs":[%s]}`, strings.Join(jobs, ","))
		held, busy := []string{}, 0
		for range 4 {
			r := c.receive()
			for _, j := range r.Jobs {
				held = append(held, j.Lease)
			}
			if r.Error.Code == "busy" {
				busy++
			}
		}
		if len(held) != 3 || busy != 2 {
			t.Fatalf("four claims of two jobs each hold %d, and %d were answered busy; want 3 and 2", len(held), busy)
		}
		c.call(`{"op":"ack","lease":%q,"id":10}`, held[0])
		producer.call(`{"op":"enqueue","queue":"elsewhere"}`)
		if r := c.receive(); len(r.Jobs) != 1 {
			t.Errorf("a claim that waits has no job after one was settled: %+v", r)
		}
		for _, lease := range held[1:] {
			c.call(`{"op":"ack","lease":%q,"id":11}`, lease)
		}
		eventually(t, func() bool { return s.held() == 1 })
	})
}

// TestLimitOfBoundJobs shows that a connection can't exceed the limit by binding leases of others.
func TestLimitOfBoundJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := limited(t, Limits{JobsPerConnection: 2})
		a, b := s.dial(t), s.dial(t)
		a.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"},{"queue":"q"},{"queue":"q"},{"queue":"q"}]}`)
		one := a.call(`{"op":"claim","queue":"q","max":2}`).Jobs
		two := b.call(`{"op":"claim","queue":"q","max":2}`).Jobs
		b.call(`{"op":"extend","leases":[%q,%q],"bind":true}`, two[0].Lease, two[1].Lease) // they belong to it already
		b.refused("busy", `{"op":"extend","lease":%q,"bind":true}`, one[0].Lease)
		b.call(`{"op":"ack","lease":%q}`, two[0].Lease)
		b.call(`{"op":"extend","lease":%q,"bind":true}`, one[0].Lease)
		a.claim1("q")
		a.refused("busy", `{"op":"claim","queue":"q"}`)
		b.refused("busy", `{"op":"claim","queue":"q"}`)
	})
}

// waiting counts the waiting claims of all connections.
func (s *sidecar) waiting() (n int64) {
	for _, x := range s.status().Sessions {
		n += x.Waiting
	}
	return n
}

// held counts the jobs that all connections hold.
func (s *sidecar) held() (n int64) {
	for _, x := range s.status().Sessions {
		n += x.Leases
	}
	return n
}

func TestLimitOfNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.Limits.QueueNames = 2
		o.Queues["named"] = Queue{}
		c := start(t, o).dial(t)
		for _, q := range []string{"a", "b", "a", "named"} {
			c.call(`{"op":"enqueue","queue":%q}`, q)
		}
		for _, line := range []string{`{"op":"enqueue","queue":"c"}`, `{"op":"enqueue","jobs":[{"queue":"a"},{"queue":"d"}]}`, `{"op":"pause","queue":"e"}`} {
			if r := c.refused("busy", "%s", line); r.Error.RetryMS != quota.QueueNameAge.Milliseconds() {
				t.Errorf("%s: retry_ms is %d ms", line, r.Error.RetryMS)
			}
		}
		c.claim1("b")
	})
}

// TestNamesWithoutJobsAreForgotten shows that the sidecar queries the database for the names that have jobs.
func TestNamesWithoutJobsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.Limits.QueueNames = 3
		s := start(t, o)
		c := s.dial(t)
		for _, q := range []string{"empty", "full", "paused"} {
			c.call(`{"op":"enqueue","queue":%q}`, q)
		}
		c.call(`{"op":"pause","queue":"paused"}`)
		c.call(`{"op":"ack","lease":%q}`, c.claim1("empty").Lease)
		c.call(`{"op":"purge","queue":"paused","state":"ready"}`)
		time.Sleep(time.Hour)
		c.refused("busy", `{"op":"enqueue","queue":"new"}`) // which starts a query
		eventually(t, func() bool {
			return s.shared.Names.Count() == 2
		})
		c.call(`{"op":"enqueue","queue":"new"}`)
		c.refused("busy", `{"op":"enqueue","queue":"another"}`)
	})
}

func TestLimitOfReadyJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.Queues["q"] = Queue{MaxReady: 3}
		s := start(t, o)
		c := s.dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"}]}`)
		c.refused("busy", `{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"}]}`)
		c.call(`{"op":"enqueue","queue":"q"}`)
		if r := c.refused("busy", `{"op":"enqueue","queue":"q"}`); r.Error.RetryMS != depth.ReadyAge.Milliseconds() {
			t.Errorf("retry_ms is %d ms", r.Error.RetryMS)
		}
		// More jobs than the limit: waiting does not help.
		if r := c.refused("busy", `{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"},{"queue":"q"},{"queue":"q"}]}`); r.Error.RetryMS != 0 || !strings.Contains(r.Error.Message, "fewer at a time") {
			t.Errorf("four jobs for a queue of three are answered %+v", r.Error)
		}
		c.call(`{"op":"enqueue","queue":"free"}`)
		j := c.claim1("q")
		c.refused("busy", `{"op":"ack","lease":%q,"enqueue":[{"queue":"q"},{"queue":"q"}]}`, j.Lease)
		c.call(`{"op":"ack","lease":%q}`, j.Lease)
		eventually(t, func() bool { // as of a second ago
			c.send(`{"op":"enqueue","queue":"q"}`)
			return c.receive().OK
		})
	})
}

// TestLimitsHarmNoOtherClient shows that other clients can work while one client is over each limit.
func TestLimitsHarmNoOtherClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.Limits = Limits{Connections: 40, JobsPerConnection: 5, QueueNames: 3}
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
	})
}

// TestHalfAMessageThenSilence shows that a client that stops in the middle of a message loses the connection in the
// end, and doesn't disturb the others.
func TestHalfAMessageThenSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		var slow []*client
		for _, half := range []string{"\x00\x00", "\x00\x00\x03\xe8\x81", `{"op":"pi`} {
			c := s.dial(t)
			if _, err := io.WriteString(c.conn, half); err != nil {
				t.Fatal(err)
			}
			slow = append(slow, c)
		}
		synctest.Wait()
		time.Sleep(partialTimeout - time.Second)
		s.dial(t).call(`{"op":"ping"}`)
		for _, c := range slow {
			if err := c.conn.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if text, err := io.ReadAll(c.in); err != nil || !strings.Contains(string(text), "not completed within") {
				t.Errorf("the answer to half a message is %q, %v", text, err)
			}
		}
	})
}

// TestStatsNameTheLimit shows that stats name the limit that ready jobs wait for, and that the metrics count such claims.
func TestStatsNameTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c := s.dial(t)
		limited := func(queue string) any {
			t.Helper()
			q := c.call(`{"op":"stats","queue":%q}`, queue).Queues
			if len(q) != 1 {
				t.Fatalf("stats of %d queues", len(q))
			}
			return q[0]["limited"]
		}
		for range 3 {
			c.call(`{"op":"enqueue","queue":"capped"}`)
			c.call(`{"op":"enqueue","queue":"rated"}`)
		}
		c.call(`{"op":"limit","queue":"capped","max_claimed":1}`)
		c.call(`{"op":"limit","queue":"rated","rate":"1/m","burst":2}`)
		for _, q := range []string{"capped", "rated"} {
			if got := limited(q); got != nil {
				t.Errorf("%s waits for %v before a claim", q, got)
			}
		}
		first := c.claim1("capped")
		c.claim1("rated")
		if got := limited("rated"); got != nil {
			t.Errorf("the queue waits for %v, and another job can start", got)
		}
		c.claim1("rated")
		for _, q := range []string{"capped", "rated"} {
			if r := c.call(`{"op":"claim","queue":%q}`, q); len(r.Jobs) != 0 {
				t.Fatalf("a claim of %s gets a job over the limit", q)
			}
		}
		if got := limited("capped"); got != "max_claimed" {
			t.Errorf("the capped queue waits for %v, want max_claimed", got)
		}
		if got := limited("rated"); got != "rate" {
			t.Errorf("the queue with a rate waits for %v, want rate", got)
		}
		all := figures(t, s.Bridge)
		for name, want := range map[string]float64{
			"queue_max_claimed{database=main,queue=capped}":                      1,
			"queue_rate_per_second{database=main,queue=rated}":                   1. / 60,
			"claims_limited_total{database=main,limit=max_claimed,queue=capped}": 1,
			"claims_limited_total{database=main,limit=rate,queue=rated}":         1,
		} {
			if got, ok := all[name]; got != want || !ok {
				t.Errorf("the metric %s is %v (%v), want %v", name, got, ok, want)
			}
		}
		c.call(`{"op":"ack","lease":%q}`, first.Lease)
		time.Sleep(time.Minute)
		for _, q := range []string{"capped", "rated"} {
			if got := limited(q); got != nil {
				t.Errorf("%s still waits for %v", q, got)
			}
		}
	})
}
