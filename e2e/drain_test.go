package e2e

import (
	"syscall"
	"testing"
	"time"
)

// TestDrain: at SIGTERM waiting claims are answered draining, settles go on, and
// the process ends with its last worker.
func TestDrain(t *testing.T) {
	s := newSite(t)
	s.extra = "drain_timeout: 60s\n"
	a := s.started("a")
	worker, waiter, watcher := a.dial(), a.dial(), a.dial()
	watcher.must(msg{"op": "hello", "events": []string{"draining"}})
	worker.enqueueN("q", 2)
	jobs := worker.must(msg{"op": "claim", "queue": "q", "max": 2}).Jobs
	if len(jobs) != 2 {
		t.Fatalf("claimed %d jobs, want 2", len(jobs))
	}
	waiter.post(msg{"op": "claim", "queue": "q", "wait_ms": 60_000})
	a.caughtUp()
	a.signal(syscall.SIGTERM)

	waiter.wantError("draining", "a waiting claim", waiter.next())
	if r := watcher.next(); r.Event != "draining" {
		t.Errorf("the session that asked for it got %+v, want the event draining", r)
	}
	worker.refused("draining", msg{"op": "claim", "queue": "q", "wait_ms": 60_000})
	worker.must(msg{"op": "ack", "lease": jobs[0].Lease})
	worker.must(msg{"op": "enqueue", "queue": "q", "payload": "all else works"})
	if !a.alive() {
		t.Fatalf("it exited while a worker held a job:\n%s", a.readLog())
	}
	at := monotonic()
	worker.must(msg{"op": "ack", "lease": jobs[1].Lease})
	if code := a.exit(patience); code != 0 {
		t.Errorf("it exited with %d, want 0:\n%s", code, a.readLog())
	}
	figure(t, "a draining sidecar ends %v after the last worker's ack", since(at).Round(time.Millisecond))

	a.start()
	if got := a.dial().stat("q"); got.Ready != 1 || got.total() != 1 {
		t.Errorf("after the restart the queue has %+v, want the one ready job", got)
	}
}

// TestSecondSignal: the second signal ends a drain at once, and gives nothing away.
func TestSecondSignal(t *testing.T) {
	for _, first := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(first.String(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.extra = "drain_timeout: 60s\n"
			a := s.started("a")
			worker, waiter := a.dial(), a.dial()
			worker.enqueueN("q", 1)
			job := worker.claimOne("q")
			waiter.post(msg{"op": "claim", "queue": "q", "wait_ms": 60_000})
			a.caughtUp()
			a.signal(first)
			waiter.wantError("draining", "a waiting claim", waiter.next())
			at := monotonic()
			a.signal(first)
			code := a.exit(patience)
			took := since(at)
			figure(t, "after a second %v the sidecar is gone in %v, exit code %d", first, took.Round(time.Millisecond), code)
			if took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			a.start() // the lease outlived it
			a.dial().must(msg{"op": "ack", "lease": job.Lease})
		})
	}
}

// TestSecondSidecarOnOneSocket: whoever comes second is told so, and the first
// one goes on.
func TestSecondSidecarOnOneSocket(t *testing.T) {
	s := newSite(t)
	a := s.started("a")
	second := s.sidecar("a")
	second.log += ".second"
	second.launch()
	if code := second.exit(patience); code == 0 {
		t.Errorf("the second sidecar on one socket exited with 0:\n%s", second.readLog())
	}
	a.dial().must(msg{"op": "ping"})
}
