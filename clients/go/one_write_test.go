package qsidecar_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// heldConn counts its writes. hold makes the next one wait.
type heldConn struct {
	net.Conn
	mu            sync.Mutex
	writes        int
	held, proceed chan struct{} // nil: no write waits
}

func (h *heldConn) hold() (held, proceed chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writes, h.held, h.proceed = 0, make(chan struct{}), make(chan struct{})
	return h.held, h.proceed
}

func (h *heldConn) Write(b []byte) (int, error) {
	h.mu.Lock()
	h.writes++
	held, proceed := h.held, h.proceed
	h.held = nil
	h.mu.Unlock()
	if held != nil {
		close(held)
		<-proceed
	}
	return h.Conn.Write(b)
}

// TestGoroutinesShareAWrite shows that what goroutines send while a write is under way goes into one write.
func TestGoroutinesShareAWrite(t *testing.T) {
	const others = 50
	conn := new(heldConn)
	s := listen(t)
	dialed := later(func() (*qsidecar.Client, error) {
		return qsidecar.Dial(t.Context(), qsidecar.Options{Dial: func(context.Context) (_ net.Conn, err error) {
			conn.Conn, err = net.Dial("unix", s.socket)
			return conn, err
		}})
	})
	p := s.accept()
	client, err := dialed.wait(t)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	held, proceed := conn.hold()
	var pings errgroup.Group
	ping := func() error { return client.Ping(t.Context()) }
	pings.Go(ping)
	testwait.Closed(t, "the first write begins", held)
	for range others {
		pings.Go(ping)
	}
	testwait.Until(t, "all requests are queued", func() bool { return client.Queued() == others })
	close(proceed)
	for range 1 + others {
		p.ok(p.expect(protocol.OpPing))
	}
	if err := pings.Wait(); err != nil {
		t.Fatal(err)
	}
	conn.mu.Lock()
	defer conn.mu.Unlock()
	if conn.writes != 2 {
		t.Errorf("%d requests are sent in %d writes, want 2", 1+others, conn.writes)
	}
}
