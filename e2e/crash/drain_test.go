package crash

import (
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestSecondSignal checks that a second signal ends a drain at once, and that the leases stay
// valid.
func TestSecondSignal(t *testing.T) {
	for _, first := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(first.String(), func(t *testing.T) {
			t.Parallel()
			s := kit.NewSite(t)
			s.Extra = "drain_timeout: 60s\n"
			a := s.Start("a")
			worker, waiter := a.Dial(), a.Dial()
			worker.Enqueue("q", 1)
			job := worker.ClaimOne("q")
			waiter.Post(kit.Msg{"op": "claim", "queue": "q", "wait_ms": 60_000})
			a.CaughtUp()
			a.Signal(first)
			waiter.WantError("draining", "a waiting claim", waiter.Next())
			at := kit.Monotonic()
			a.Signal(first)
			code := a.WaitExit()
			took := kit.Since(at)
			kit.Figure(t, "after a second %v the sidecar is gone in %v, exit code %d", first, took.Round(time.Millisecond), code)
			a.Start() // the lease is still valid after the restart
			a.Dial().Must(kit.Msg{"op": "ack", "lease": job.Lease})
		})
	}
}
