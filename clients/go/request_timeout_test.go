package qsidecar_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestEnqueueEndsAfterRequestTimeout checks that an enqueue fails within RequestTimeout if the sidecar
// does not answer, unless its context has a deadline.
func TestEnqueueEndsAfterRequestTimeout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		deadline time.Duration
		want     time.Duration
	}{"by itself": {0, 50 * time.Second} /* see TestMain */, "by its context": {5 * time.Second, 5 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client, peers := piped(t)
				p := <-peers
				ctx, cancel := t.Context(), func() {}
				if c.deadline > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
				}
				defer cancel()
				began := time.Now()
				one := later(func() (protocol.EnqueuedJob, error) { return client.Enqueue(ctx, protocol.NewJob{Queue: "q"}) })
				many := later(func() ([]protocol.EnqueuedJob, error) {
					return client.EnqueueMany(ctx, []protocol.NewJob{{Queue: "q"}})
				})
				p.expect(protocol.OpEnqueue) // it gets no reply
				p.expect(protocol.OpEnqueue)
				_, err := one.wait(t)
				_, manyErr := many.wait(t)
				if took := time.Since(began); took != c.want {
					t.Errorf("Enqueue returned after %v, want %v", took, c.want)
				}
				for _, err := range []error{err, manyErr} {
					if !errors.Is(err, qsidecar.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("it returned %v, want an unknown outcome for want of time", err)
					}
				}
			})
		})
	}
}

// TestDrainNeedsASidecar checks that a Worker with Drain does not wait for a sidecar. cron would
// soon start more of them.
func TestDrainNeedsASidecar(t *testing.T) {
	t.Parallel()
	s := listen(t)
	s.down()
	w := qsidecar.Worker{Queues: []string{"q"}, Handler: func(context.Context, *qsidecar.Job) error { return nil }, Drain: true}
	w.Options.Socket = s.socket
	done := later(func() (struct{}, error) { return struct{}{}, w.Run(t.Context()) })
	var dial *qsidecar.DialError
	if _, err := done.wait(t); !errors.As(err, &dial) {
		t.Errorf("Run: %v, want a DialError", err)
	}
	s.up()
	done = later(func() (struct{}, error) { return struct{}{}, w.Run(t.Context()) })
	p := s.accept()
	p.refuse(p.expect(protocol.OpClaim), protocol.CodeUnavailable, time.Millisecond)
	for {
		req, err := p.next()
		if err != nil {
			break
		}
		p.ok(req) // bye
	}
	if _, err := done.wait(t); !qsidecar.IsCode(err, protocol.CodeUnavailable) {
		t.Errorf("Run: %v, want that the database is away", err)
	}
}
