package journeys

import (
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestDrain checks that after SIGTERM waiting claims get draining, settles still work, and the
// process ends with its last worker.
func TestDrain(t *testing.T) {
	s := kit.NewSite(t)
	s.Extra = "drain_timeout: 60s\n"
	a := s.Start("a")
	worker, waiter, watcher := a.Dial(), a.Dial(), a.Dial()
	watcher.Must(kit.Msg{"op": "hello", "events": []string{"draining"}})
	worker.Enqueue("q", 2)
	jobs := worker.Must(kit.Msg{"op": "claim", "queue": "q", "max": 2}).Jobs
	if len(jobs) != 2 {
		t.Fatalf("claimed %d jobs, want 2", len(jobs))
	}
	waiter.Post(kit.Msg{"op": "claim", "queue": "q", "wait_ms": 60_000})
	a.CaughtUp()
	a.Signal(syscall.SIGTERM)

	waiter.WantError("draining", "a waiting claim", waiter.Next())
	if r := watcher.Next(); r.Event != "draining" {
		t.Errorf("the session that asked for it got %+v, want the event draining", r)
	}
	worker.MustFail("draining", kit.Msg{"op": "claim", "queue": "q", "wait_ms": 60_000})
	worker.Must(kit.Msg{"op": "ack", "lease": jobs[0].Lease})
	worker.Must(kit.Msg{"op": "enqueue", "queue": "q", "payload": "all else works"})
	if !a.Alive() {
		t.Fatalf("it exited while a worker held a job:\n%s", a.Log())
	}
	at := kit.Monotonic()
	worker.Must(kit.Msg{"op": "ack", "lease": jobs[1].Lease})
	if code := a.WaitExit(); code != 0 {
		t.Errorf("it exited with %d, want 0:\n%s", code, a.Log())
	}
	kit.Figure(t, "a draining sidecar ends %v after the last worker's ack", kit.Since(at).Round(time.Millisecond))

	a.Start()
	if got := a.Dial().Stats("q"); got.Ready != 1 || got.Total() != 1 {
		t.Errorf("after the restart the queue has %+v, want the one ready job", got)
	}
}
