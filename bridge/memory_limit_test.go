package bridge

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestLimitOfBuffered shows that connections that each send half of a large message use no more memory than is
// allowed. They are closed for others that send whole messages.
func TestLimitOfBuffered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 8 << 20
		s, _ := limited(t, Limits{BufferMemory: most})
		half := `{"op":"enqueue","queue":"q","payload":"` + strings.Repeat("x", 2<<20)
		replies := make(chan string, 8)
		for range cap(replies) {
			c := s.dial(t)
			go func() { _, _ = c.conn.Write([]byte(half)) }() // the write is cut off
			go func() {
				line, err := c.line()
				replies <- fmt.Sprint(string(line), err)
			}()
		}
		eventually(t, func() bool { return s.buffered() == most })
		whole := s.dial(t)
		whole.call("%s", half+`"}`)
		if n := s.buffered(); n > most {
			t.Errorf("%d bytes are buffered, at most %d may be", n, most)
		}
		if text := <-replies; !strings.Contains(text, `"busy"`) || !strings.Contains(text, "limits.buffer_memory") {
			t.Errorf("the stalled client received %s", text)
		}
		whole.call(`{"op":"bye"}`)
	})
}

// TestLimitOfUnreadReplies shows that a client that claims large jobs and reads no reply is closed when others need
// the memory.
func TestLimitOfUnreadReplies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 8 << 20
		s, _ := limited(t, Limits{BufferMemory: most})
		c, deaf := s.dial(t), s.dial(t)
		large := strings.Repeat("x", 3<<20)
		for range 3 {
			c.call(`{"op":"enqueue","queue":"q","payload":"%s"}`, large)
		}
		for i := range 3 {
			deaf.send(`{"op":"claim","id":%d,"queue":"q","wait_ms":20000}`, i)
		}
		eventually(t, func() bool { return s.buffered() >= 6<<20 })
		c.call(`{"op":"enqueue","queue":"other","payload":"%s"}`, large)
		eventually(t, func() bool { // the memory of the other one is free
			c.send(`{"op":"claim","queue":"q"}`)
			return len(c.receive().Jobs) == 1
		})
		c.call(`{"op":"bye"}`)
		eventually(t, func() bool { return s.buffered() == 0 })
	})
}

// buffered returns the bytes in memory for all sessions.
func (s *sidecar) buffered() int64 {
	m := s.shared.Memory.Snapshot()
	if all := m.Sessions + m.Claims + m.Prefetched + m.Inspections; all != m.Used {
		panic(fmt.Sprintf("%d bytes are counted, and there are %d", m.Used, all))
	}
	return m.Sessions
}

// TestHalfRequestsOfOneClient shows that a process that sends halves of large messages on hundreds of connections,
// and connects again if the server closes them, delays a large message of another process by little.
func TestHalfRequestsOfOneClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := limited(t, Limits{BufferMemory: 64 << 20})
		victim := s.dial(t)
		offender := *s.net.peer
		offender.PID++
		s.net.peer = &offender
		half := `{"op":"enqueue","queue":"q","payload":"` + strings.Repeat("x", 100<<10)
		stop := make(chan struct{})
		var offending sync.WaitGroup
		defer offending.Wait() // before the sidecar stops to listen
		defer close(stop)
		for range 300 {
			offending.Go(func() {
				for {
					c := s.net.dial(t, s.path)
					_, _ = c.Write([]byte(half)) // the server closes it
					select {
					case <-stop:
						_ = c.Close()
						return
					case <-untilClosed(c):
					}
				}
			})
		}
		eventually(t, func() bool { return s.buffered() > 40<<20 })
		began := time.Now()
		victim.send("%s", half+`"}`)
		r := victim.receive()
		if took := time.Since(began); !r.OK || took > 2*time.Second {
			t.Errorf("the other client's message was answered %+v after %v", r.Error, took)
		}
	})
}

// untilClosed is closed when the other end has closed the connection. It closes this end.
func untilClosed(c *memConn) <-chan struct{} {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = io.Copy(io.Discard, c) // until any end
		_ = c.Close()
	}()
	return closed
}
