package qsidecar_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestCallsEndWhileNothingIsRead checks calls to a stopped sidecar, which reads nothing. The calls
// end with their contexts, even if their requests wait behind one that is half written.
func TestCallsEndWhileNothingIsRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, peers := piped(t)
		p := <-peers
		hold(t, c, p, "L1")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		large := later(func() (protocol.EnqueuedJob, error) {
			return c.Enqueue(ctx, protocol.NewJob{Queue: "q", Payload: make([]byte, 30<<10)})
		})
		synctest.Wait() // the client writes it: a pipe has no buffer
		settle, look := ack(ctx, c, "L1"), claim(ctx, c, qsidecar.Claim{Wait: time.Hour})
		_, err := large.wait(t)
		if !errors.Is(err, qsidecar.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Enqueue: %v, want an unknown outcome", err)
		}
		_, ackErr := settle.wait(t)
		_, claimErr := look.wait(t)
		for _, err := range []error{ackErr, claimErr} {
			if errors.Is(err, qsidecar.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("behind it: %v, want that it was not sent", err)
			}
			if want := "not sent: no sidecar took it on piped: "; !strings.Contains(err.Error(), want) {
				t.Errorf("behind it: %v, want %q in it", err, want)
			}
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("the calls returned after %v, want 5s", took)
		}
		p.ok(p.expect(protocol.OpEnqueue)) // on the same connection, so the client still holds its leases
		done := ack(t.Context(), c, "L1")
		p.settled(p.expect(protocol.OpAck), "acked", 1)
		if _, err := done.wait(t); err != nil {
			t.Error(err)
		}
	})
}

// silent returns a Dial function whose connections are never answered, like those of a stopped
// sidecar.
func silent(t *testing.T) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		go func() { // the data that the client sends is in the socket's buffer
			buf := make([]byte, 1<<10)
			for {
				if _, err := far.Read(buf); err != nil {
					return
				}
			}
		}()
		t.Cleanup(func() { far.Close() })
		return near, nil
	}
}

// TestDrainEndsAtAStoppedSidecar checks that a Worker with Drain ends. cron would soon start more
// of them.
func TestDrainEndsAtAStoppedSidecar(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := qsidecar.Worker{Queues: []string{"q"}, Handler: func(context.Context, *qsidecar.Job) error { return nil }, Drain: true}
		w.Options.Dial = silent(t)
		var dial *qsidecar.DialError
		if err := w.Run(t.Context()); !errors.As(err, &dial) {
			t.Errorf("Run: %v, want that no sidecar answers", err)
		}
	})
}

// TestReconnectLeavesAStoppedSidecar checks that the client dials again, because another sidecar
// can be listening there by now.
func TestReconnectLeavesAStoppedSidecar(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dials, peers := 0, make(chan *peer, 1)
		c, err := qsidecar.Dial(t.Context(), qsidecar.Options{Dial: func(ctx context.Context) (net.Conn, error) {
			if dials++; dials == 2 {
				return silent(t)(ctx)
			}
			near, far := net.Pipe()
			p := &peer{t: t, conn: far, in: protocol.NewReader(far, 1<<20)}
			go func() {
				if hello, err := p.next(); err == nil && p.welcome(hello) == nil {
					peers <- p
				}
			}()
			return near, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		p := <-peers
		p.close()
		ping := call(t.Context(), c, protocol.Request{Op: protocol.OpPing})
		p = <-peers
		p.ok(p.expect(protocol.OpPing))
		if _, err := ping.wait(t); err != nil {
			t.Error(err)
		}
	})
}
