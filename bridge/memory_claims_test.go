package bridge

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// idleMemory waits until no memory and no open request counts any more.
func (s *sidecar) idleMemory(t *testing.T) {
	t.Helper()
	eventually(t, func() bool {
		n := s.buffered()
		return n+s.shared.Memory.Snapshot().Used == 0 && s.shared.Concurrent.Load() == 0
	})
}

// TestLargeJobsOfManyQueues shows that claims of more large jobs than memory allows, each of another queue, are all
// answered, a few at a time, and small ones between them.
func TestLargeJobsOfManyQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const queues, most = 24, 16 << 20
		s, _ := limited(t, Limits{BufferMemory: most})
		p, c := s.dial(t), s.dial(t)
		large := strings.Repeat("x", 2<<20)
		for i := range queues {
			payload := large
			if i%3 == 0 {
				payload = "small"
			}
			p.call(`{"op":"enqueue","queue":"q%d","payload":"%s"}`, i, payload)
		}
		var text strings.Builder
		for i := range queues {
			fmt.Fprintf(&text, `{"op":"claim","id":%d,"queue":"q%d","wait_ms":60000}`+"\n", i, i)
		}
		c.send("%s", text.String())
		for range queues {
			if r := c.receive(); len(r.Jobs) != 1 {
				t.Fatalf("a claim was answered %+v", r)
			}
			if n := s.buffered(); n > most+most/2 {
				t.Errorf("%d bytes are held for sessions, at most %d may be", n, most)
			}
		}
		c.call(`{"op":"bye"}`)
		p.call(`{"op":"bye"}`)
		s.idleMemory(t)
	})
}

// TestClaimsBesideLargeRequests shows that claims are answered while a request arrives that uses all memory that
// requests can use.
func TestClaimsBesideLargeRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := limited(t, Limits{BufferMemory: 8 << 20})
		half, c := s.dial(t), s.dial(t)
		if _, err := half.conn.Write([]byte(`{"op":"enqueue","queue":"q","payload":"` + strings.Repeat("x", 1<<20))); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return s.buffered() == 8<<20 })
		for range 10 {
			c.call(`{"op":"enqueue","queue":"q"}`)
			c.claim1("q")
		}
		if n := s.buffered(); n != 8<<20 {
			t.Errorf("%d bytes are held: the request was cut off for a small claim", n)
		}
	})
}

// TestNamesOfOpenClaims shows that the open claims of a connection name a bounded number of queues together.
func TestNamesOfOpenClaims(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := limited(t, Limits{})
		c := s.dial(t)
		names := make([]string, 1000)
		for i := range names {
			names[i] = fmt.Sprintf(`"q%d"`, i)
		}
		list := strings.Join(names, ",")
		for i := range maxNamed / len(names) {
			c.send(`{"op":"claim","id":%d,"queues":[%s],"wait_ms":600000}`, i, list)
		}
		c.refused("busy", `{"op":"claim","id":"more","queues":[%s],"wait_ms":1}`, list)
		c.send(`{"op":"claim","id":"few","queue":"q","wait_ms":1}`)
		if r := c.receive(); r.Error.Code != "" {
			t.Errorf("a claim of one queue was answered %v", r.Error)
		}
		c.call(`{"op":"cancel_claim"}`)
	})
}

// TestOpenRequestsInAll shows that, if all connections have too many open requests, only connections with more than a
// few get an error. The others can wait for jobs as before.
func TestOpenRequestsInAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 1 << 20 / openCost
		s, _ := limited(t, Limits{BufferMemory: 1 << 20})
		greedy, other := s.dial(t), s.dial(t)
		for i := range most {
			greedy.send(`{"op":"claim","id":%d,"queue":"q","wait_ms":600000}`, i)
		}
		eventually(t, func() bool { return s.shared.Concurrent.Load() == most })
		greedy.refused("busy", `{"op":"claim","id":"more","queue":"q","wait_ms":600000}`)
		greedy.call(`{"op":"enqueue","id":"one","queue":"other"}`)
		for i := range minOpen {
			other.send(`{"op":"claim","id":%d,"queue":"its","wait_ms":600000}`, i)
		}
		eventually(t, func() bool { return s.shared.Concurrent.Load() == most+minOpen })
		other.refused("busy", `{"op":"claim","id":"more","queue":"its","wait_ms":600000}`)
		greedy.call(`{"op":"enqueue","id":"two","queue":"its"}`)
		if r := other.receive(); len(r.Jobs) != 1 {
			t.Errorf("a claim that waited was answered %+v", r)
		}
		greedy.close()
		other.close()
		s.idleMemory(t)
	})
}
