package journeys

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestWorkerKilled checks that the job of a killed worker goes to a waiting one.
func TestWorkerKilled(t *testing.T) {
	a := kit.NewSite(t).Start("a")
	waiter, producer := a.Dial(), a.Dial()
	var worst, sum time.Duration
	const rounds = 5
	for range rounds {
		id := producer.Must(kit.Msg{"op": "enqueue", "queue": "q", "payload": "x"}).Job.ID
		worker, held := startHolder(a, "q")
		if held.ID != id || held.Attempt != 1 {
			t.Fatalf("the worker holds %+v, want the job %s", held, id)
		}
		waiter.Post(kit.Msg{"op": "claim", "queue": "q", "wait_ms": 30_000})
		at := kit.Monotonic()
		worker.Kill(t)
		r := waiter.Next()
		took := kit.Since(at)
		if len(r.Jobs) != 1 || r.Jobs[0].ID != id || r.Jobs[0].Attempt != 2 || r.Jobs[0].Fence <= held.Fence {
			t.Fatalf("the waiting worker got %+v %v, want job %s, attempt 2, fence above %d", r.Jobs, r.Error, id, held.Fence)
		}
		producer.MustFail("lease_lost", kit.Msg{"op": "ack", "lease": held.Lease})
		waiter.Must(kit.Msg{"op": "ack", "lease": r.Jobs[0].Lease})
		worst, sum = max(worst, took), sum+took
	}
	mean := sum / time.Duration(rounds)
	kit.Figure(t, "a killed worker's job is with another worker after %v on average, %v at worst (%d times)", mean.Round(10*time.Microsecond), worst.Round(10*time.Microsecond), rounds)
}

// TestSidecarKilled checks that the jobs of a killed sidecar go to a second sidecar on the same
// file after the timeout, and that the old leases are invalid.
func TestSidecarKilled(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.SidecarTimeout = 20 * time.Second // longer than a busy machine delays a heartbeat
	a, b := s.Start("a"), s.Start("b")
	worker, waiter := a.Dial(), b.Dial()
	ids := worker.Enqueue("q", 3)
	var held []kit.Job
	for range ids {
		held = append(held, worker.ClaimOne("q"))
	}
	waiter.WaitDelivered(held...)
	at := kit.Monotonic()
	a.Kill()
	for range ids {
		j := waiter.ClaimOne("q")
		if j.Attempt != 2 {
			t.Errorf("job %s comes with attempt %d, want 2", j.ID, j.Attempt)
		}
		waiter.Must(kit.Msg{"op": "ack", "lease": j.Lease})
	}
	kit.Figure(t, "a killed sidecar's jobs are with the second one after %v (sidecar_timeout %v)", kit.Since(at).Round(time.Millisecond), s.SidecarTimeout)
	a.Start()
	a.Dial().MustFail("lease_lost", kit.Msg{"op": "ack", "lease": held[0].Lease})
	if left := s.JobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// TestJobThatKillsItsWorkers checks a job whose worker dies each time. It is ready at once after the first
// loss, and backs off after the second. It uses up its attempts and keeps every cause.
func TestJobThatKillsItsWorkers(t *testing.T) {
	t.Parallel()
	const attempts = 4
	s := kit.NewSite(t)
	s.Queues = "  slow: {backoff: {initial: 1h, max: 1h}}\n  q: {max_attempts: 4, backoff: {initial: 1ms, max: 1ms}}\n"
	a := s.Start("a")
	c := a.Dial()
	dies := func(queue, id string, n int) {
		t.Helper()
		worker, held := startHolder(a, queue)
		if held.ID != id || held.Attempt != n {
			t.Fatalf("delivery %d: %+v", n, held)
		}
		worker.Kill(t)
		testwait.Until(t, "the job is taken back", func() bool { return c.Stats(queue).Claimed == 0 })
	}
	slow := c.Put("slow", "deadly")[0]
	for n, want := range []string{"ready", "scheduled"} {
		dies("slow", slow, n+1)
		if job := c.Peek("slow", slow); job.State != want || len(job.Errors) != n+1 {
			t.Errorf("after loss %d the job is %+v, want it %s", n+1, job, want)
		}
	}
	id := c.Put("q", "deadly")[0]
	for n := 1; n <= attempts; n++ {
		dies("q", id, n)
	}
	if got := c.Stats("q"); got.Dead != 1 || got.Total() != 1 {
		t.Errorf("the queue has %+v, want one dead job", got)
	}
	job := c.Peek("q", id)
	if job.State != "dead" || len(job.Errors) != attempts {
		t.Fatalf("the job is %s with the failures %+v, want dead with %d", job.State, job.Errors, attempts)
	}
	for i, f := range job.Errors {
		if f.Attempt != i+1 || f.Cause != "disconnected" {
			t.Errorf("failure %d is %+v, want attempt %d, disconnected", i, f, i+1)
		}
	}
}

// TestSnooze checks that a snooze is not a failure.
func TestSnooze(t *testing.T) {
	s := kit.NewSite(t)
	s.Queues = "  q: {max_attempts: 2}\n"
	c := s.Start("a").Dial()
	id := c.Must(kit.Msg{"op": "enqueue", "queue": "q", "payload": "later"}).Job.ID
	for range 5 {
		job := c.ClaimOne("q")
		if job.Attempt != 1 {
			t.Fatalf("attempt %d, want 1: a snoozed delivery does not count", job.Attempt)
		}
		c.Must(kit.Msg{"op": "nack", "lease": job.Lease, "snooze": true, "delay_ms": 0})
	}
	// The sidecar can prefetch the job once more, and returns it.
	testwait.Until(t, "the job is ready", func() bool { return c.Peek("q", id).State == "ready" })
	if job := c.Peek("q", id); job.Attempt != 0 || len(job.Errors) != 0 {
		t.Errorf("the job has %d attempts and the failures %+v, want none", job.Attempt, job.Errors)
	}
}
