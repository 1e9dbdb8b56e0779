package e2e

import (
	"fmt"
	"testing"
	"time"
)

// TestTwoSidecarsKeepTime: what one sidecar was told, another one keeps: due
// times, ends of leases, limits of runs, pauses, keys.
func TestTwoSidecarsKeepTime(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := s.started("a"), s.started("b")
	// within waits for a job of the queue through b, and says when it came.
	within := func(t *testing.T, queue string, least time.Duration, since0 int64) wireJob {
		t.Helper()
		r := b.dial().must(msg{"op": "claim", "queue": queue, "wait_ms": 15_000, "lease_ms": 60_000})
		took := since(since0)
		if len(r.Jobs) != 1 {
			t.Fatalf("%s: %d jobs, want 1", queue, len(r.Jobs))
		}
		figure(t, "%s: due after %v, delivered after %v", queue, least, took.Round(time.Millisecond))
		if took < least-5*time.Millisecond || took > least+time.Second {
			t.Errorf("%s: delivered after %v, want between %v and a second more", queue, took, least)
		}
		return r.Jobs[0]
	}
	t.Run("due", func(t *testing.T) {
		at := monotonic()
		a.dial().must(msg{"op": "enqueue", "queue": "due", "payload": "x", "delay_ms": 700})
		if job := within(t, "due", 700*time.Millisecond, at); job.Attempt != 1 {
			t.Errorf("attempt %d, want 1", job.Attempt)
		}
	})
	t.Run("due-by-hand", func(t *testing.T) {
		at := monotonic()
		s.exec(t, `INSERT INTO qsidecar_jobs (queue, payload, run_at)
			VALUES ('due-by-hand', 'x', strftime('%Y-%m-%d %H:%M:%f', 'now', '+0.9 seconds'))`)
		within(t, "due-by-hand", 900*time.Millisecond, at)
	})
	t.Run("lease-end", func(t *testing.T) {
		c := a.dial()
		c.enqueueN("lease-end", 1)
		at := monotonic()
		held := c.must(msg{"op": "claim", "queue": "lease-end", "lease_ms": 1000}).Jobs[0]
		if err := c.Close(); err != nil { // the lease outlives its connection
			t.Fatal(err)
		}
		job := within(t, "lease-end", time.Second, at)
		if job.Attempt != 2 || job.Fence <= held.Fence {
			t.Errorf("attempt %d, fence %d after %d: want 2, and a larger one", job.Attempt, job.Fence, held.Fence)
		}
		a.dial().refused("lease_lost", msg{"op": "ack", "lease": held.Lease})
		a.dial().must(msg{"op": "ack", "lease": job.Lease}) // any sidecar settles it
	})
	t.Run("timeout", func(t *testing.T) {
		c := a.dial()
		id := c.must(msg{"op": "enqueue", "queue": "timeout", "payload": "x", "timeout_ms": 1000}).Job.ID
		at := monotonic()
		held := c.claimOne("timeout")           // its connection lives on
		within(t, "timeout", 2*time.Second, at) // the run's limit, then the back-off of a second
		view := c.must(msg{"op": "peek", "queue": "timeout", "ids": []string{id}}).Jobs[0]
		if len(view.Errors) != 1 || view.Errors[0].Cause != "timed_out" {
			t.Errorf("its failures are %+v, want one, timed_out", view.Errors)
		}
		c.refused("lease_lost", msg{"op": "ack", "lease": held.Lease})
	})
	t.Run("key", func(t *testing.T) {
		ids := map[string]int{}
		ca, cb := a.dial(), b.dial()
		for i := range 20 {
			for _, c := range []*conn{ca, cb} {
				c.post(msg{"op": "enqueue", "queue": "key", "payload": "x", "key": fmt.Sprint(i / 2)})
			}
			for _, c := range []*conn{ca, cb} {
				ids[c.next().Job.ID]++
			}
		}
		if len(ids) != 10 || ca.stat("key").Ready != 10 {
			t.Errorf("ten keys made the jobs %v", ids)
		}
	})
}

// TestPauseHoldsEverywhere: once a pause is answered, no sidecar delivers after a second.
func TestPauseHoldsEverywhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := s.started("a"), s.started("b")
	ca, cb := a.dial(), b.dial()
	ca.enqueueN("q", 3)
	cb.must(msg{"op": "ack", "lease": cb.claimOne("q").Lease})
	ca.must(msg{"op": "pause", "queue": "q"})
	pass(time.Second)
	if r := cb.must(msg{"op": "claim", "queue": "q", "wait_ms": 500}); len(r.Jobs) != 0 {
		t.Errorf("a paused queue gave %d jobs through the other sidecar", len(r.Jobs))
	}
	cb.post(msg{"op": "claim", "queue": "q", "wait_ms": 15_000})
	b.caughtUp()
	at := monotonic()
	ca.must(msg{"op": "resume", "queue": "q"})
	if r := cb.next(); len(r.Jobs) != 1 {
		t.Errorf("after resume: %d jobs, want 1", len(r.Jobs))
	}
	figure(t, "resumed through one sidecar, delivered through the other after %v", since(at).Round(time.Millisecond))
	if took := since(at); took > time.Second {
		t.Errorf("it took %v", took)
	}
}
