package qsidecar_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestPayloadIsReusableAfterEnqueue checks that the caller can reuse a payload when Enqueue
// returns, also if its context ended before the job was written.
func TestPayloadIsReusableAfterEnqueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, peers := piped(t)
		p := <-peers
		enqueue := func(ctx context.Context, payload []byte) *pending[protocol.EnqueuedJob] {
			return later(func() (protocol.EnqueuedJob, error) {
				return c.Enqueue(ctx, protocol.NewJob{Queue: "q", Payload: payload})
			})
		}
		// The first is being written to a peer that does not read. The others wait behind it.
		// Together they are more than the client encodes before it writes.
		const others = 8
		for range 1 + others {
			enqueue(t.Context(), bytes.Repeat([]byte("a"), 50<<10))
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		payload := []byte("mine")
		ended := enqueue(ctx, payload)
		synctest.Wait()
		p.ok(p.expect(protocol.OpEnqueue)) // now the writer can send the rest
		synctest.Wait()
		cancel()
		_, err := ended.wait(t)
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("Enqueue returned %v, want the end of its context", err)
		}
		copy(payload, "next")
		for range others {
			p.ok(p.expect(protocol.OpEnqueue))
		}
		later(func() (struct{}, error) { return struct{}{}, c.Ping(t.Context()) })
		req, readErr := p.next()
		if readErr != nil {
			t.Fatal(readErr)
		}
		if req.Op == protocol.OpEnqueue && string(req.Job.Payload) != "mine" {
			t.Errorf("the job was sent as %q, want it as it was enqueued, or not at all", req.Job.Payload)
		}
		if sent := req.Op == protocol.OpEnqueue; sent != errors.Is(err, qsidecar.ErrUnknownOutcome) {
			t.Errorf("Enqueue returned %v, and the job was sent: %v", err, sent)
		}
	})
}
