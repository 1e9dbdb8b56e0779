package bridge

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestEventIsSentBeforeTheClose shows that the server closes a connection only after it has sent the events that
// the client subscribed to, even if the connection's buffer was full at first.
func TestEventIsSentBeforeTheClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c := s.dial(t)
		c.call(`{"op":"hello","events":["draining"]}`)
		in := c.conn.(*memConn).in
		in.set(func() { in.buf = bytes.Repeat([]byte(" "), memBuffer) })
		s.stop()
		synctest.Wait()
		line, err := c.line()
		if err != nil {
			t.Fatalf("the connection ended before the event: %v", err)
		}
		if r := parse(t, line); r.Event != "draining" {
			t.Errorf("received %s, want the event draining", bytes.TrimSpace(line))
		}
	})
}
