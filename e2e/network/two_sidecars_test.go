package network

import (
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestTwoSidecarsShareTimes checks that one sidecar applies what another one stored: due times,
// lease ends, run time limits, pauses, keys.
func TestTwoSidecarsShareTimes(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a, b := s.Start("a"), s.Start("b")
	db := s.SQLite(t)
	// fact returns a time of the queue's only job from the file, in milliseconds.
	fact := func(t *testing.T, queue, what string) (ms int64) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), "SELECT "+what+" FROM qsidecar_jobs WHERE queue = ?", queue).Scan(&ms); err != nil {
			t.Fatal(err)
		}
		return ms
	}
	// comes waits for the queue's job through b. It must not come before due.
	comes := func(t *testing.T, queue string, due int64) kit.Job {
		t.Helper()
		var job kit.Job
		c := b.Dial()
		testwait.Until(t, "the job of "+queue, func() bool {
			r := c.Must(kit.Msg{"op": "claim", "queue": queue, "wait_ms": 1000, "lease_ms": 600_000})
			if len(r.Jobs) == 1 {
				job = r.Jobs[0]
			}
			return len(r.Jobs) == 1
		})
		late := fact(t, queue, "claimed_at") - due
		kit.Figure(t, "%s: delivered %d ms after its time", queue, late)
		if late < -5 {
			t.Errorf("%s: delivered %d ms before its time", queue, -late)
		}
		return job
	}
	t.Run("due", func(t *testing.T) {
		a.Dial().Must(kit.Msg{"op": "enqueue", "queue": "due", "payload": "x", "delay_ms": 700})
		if job := comes(t, "due", fact(t, "due", "enqueued_at + 700")); job.Attempt != 1 {
			t.Errorf("attempt %d, want 1", job.Attempt)
		}
	})
	t.Run("due-by-hand", func(t *testing.T) {
		s.Exec(t, `INSERT INTO qsidecar_jobs (queue, payload, run_at)
			VALUES ('due-by-hand', 'x', strftime('%Y-%m-%d %H:%M:%f', 'now', '+0.9 seconds'))`)
		comes(t, "due-by-hand", fact(t, "due-by-hand", "enqueued_at + 900"))
	})
	t.Run("lease-end", func(t *testing.T) {
		c := a.Dial()
		c.Enqueue("lease-end", 1)
		held := c.Must(kit.Msg{"op": "claim", "queue": "lease-end", "lease_ms": 5000}).Jobs[0]
		end := fact(t, "lease-end", "claimed_at + 5000")
		if err := c.Close(); err != nil { // the lease does not end with its connection
			t.Fatal(err)
		}
		job := comes(t, "lease-end", end)
		if job.Attempt != 2 || job.Fence <= held.Fence {
			t.Errorf("attempt %d, fence %d after %d: want 2, and a larger one", job.Attempt, job.Fence, held.Fence)
		}
		a.Dial().MustFail("lease_lost", kit.Msg{"op": "ack", "lease": held.Lease})
		a.Dial().Must(kit.Msg{"op": "ack", "lease": job.Lease}) // any sidecar can settle it
	})
	t.Run("timeout", func(t *testing.T) {
		c := a.Dial()
		id := c.Must(kit.Msg{"op": "enqueue", "queue": "timeout", "payload": "x", "timeout_ms": 5000}).Job.ID
		held := c.ClaimOne("timeout") // its connection stays open
		comes(t, "timeout", fact(t, "timeout", "claimed_at + 5000"))
		view := c.Must(kit.Msg{"op": "peek", "queue": "timeout", "ids": []string{id}}).Jobs[0]
		if len(view.Errors) == 0 || view.Errors[0].Cause != "timed_out" {
			t.Errorf("its failures are %+v, want one, timed_out", view.Errors)
		}
		c.MustFail("lease_lost", kit.Msg{"op": "ack", "lease": held.Lease})
	})
	t.Run("key", func(t *testing.T) {
		ids := map[string]int{}
		ca, cb := a.Dial(), b.Dial()
		for i := range 20 {
			for _, c := range []*kit.Conn{ca, cb} {
				c.Post(kit.Msg{"op": "enqueue", "queue": "key", "payload": "x", "key": fmt.Sprint(i / 2)})
			}
			for _, c := range []*kit.Conn{ca, cb} {
				ids[c.Next().Job.ID]++
			}
		}
		if len(ids) != 10 || ca.Stats("key").Ready != 10 {
			t.Errorf("ten keys created the jobs %v", ids)
		}
	})
}

// TestPauseAppliesToAllSidecars checks that a pause through one sidecar applies to another one too.
func TestPauseAppliesToAllSidecars(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a, b := s.Start("a"), s.Start("b")
	ca, cb := a.Dial(), b.Dial()
	ca.Enqueue("q", 3)
	cb.Must(kit.Msg{"op": "ack", "lease": cb.ClaimOne("q").Lease})
	ca.Must(kit.Msg{"op": "pause", "queue": "q"})
	testwait.Until(t, "the other sidecar delivers no more", func() bool {
		jobs := cb.Must(kit.Msg{"op": "claim", "queue": "q"}).Jobs
		for _, j := range jobs {
			cb.Must(kit.Msg{"op": "nack", "lease": j.Lease, "snooze": true, "delay_ms": 0})
		}
		return len(jobs) == 0
	})
	if r := cb.Must(kit.Msg{"op": "claim", "queue": "q", "wait_ms": 500}); len(r.Jobs) != 0 {
		t.Errorf("a paused queue gave %d jobs through the other sidecar", len(r.Jobs))
	}
	cb.Post(kit.Msg{"op": "claim", "queue": "q", "wait_ms": kit.WaitMS()})
	b.CaughtUp()
	at := kit.Monotonic()
	ca.Must(kit.Msg{"op": "resume", "queue": "q"})
	if r := cb.Next(); len(r.Jobs) != 1 {
		t.Errorf("after resume: %d jobs, want 1", len(r.Jobs))
	}
	kit.Figure(t, "resumed through one sidecar, delivered through the other after %v", kit.Since(at).Round(time.Millisecond))
}
