package bridge

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends/memory"
)

const burst = 200

// enqueues is a burst of requests for one write.
func enqueues() (text []byte) {
	for i := range burst {
		text = fmt.Appendf(text, `{"op":"enqueue","queue":"q","id":%d}`+"\n", i)
	}
	return text
}

func (c *client) exchangeBurst(text []byte) {
	if _, err := c.conn.Write(text); err != nil {
		c.t.Fatal(err)
	}
	for range burst {
		if r := c.receive(); !r.OK {
			c.t.Fatalf("answered %+v", r)
		}
	}
}

// TestBurstIsAnsweredInFewWrites shows that requests that arrive together are answered together, although a goroutine
// waits for the commit of each. On one processor the order of these goroutines does not depend on the machine.
func TestBurstIsAnsweredInFewWrites(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c := s.dial(t)
		c.exchangeBurst(enqueues())
		down := c.conn.(*memConn).in
		before := down.written()
		c.exchangeBurst(enqueues())
		if n := down.written() - before; n > burst/4 {
			t.Errorf("%d requests are answered in %d writes, want about one for each commit", burst, n)
		} else {
			t.Logf("%d requests are answered in %d writes", burst, n)
		}
	})
}

// BenchmarkBurst measures a burst of enqueues from one client, over a Unix socket.
func BenchmarkBurst(b *testing.B) {
	s := start(b, unixOptions(b, memory.New()))
	c, text := s.dial(b), enqueues()
	b.ReportAllocs()
	for b.Loop() {
		c.exchangeBurst(text)
	}
}
