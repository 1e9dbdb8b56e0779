package e2e

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestWorkerKilled: a worker killed by signal 9 frees its job to a waiting one.
func TestWorkerKilled(t *testing.T) {
	a := newSite(t).started("a")
	waiter, producer := a.dial(), a.dial()
	var worst, sum time.Duration
	const rounds = 5
	for range rounds {
		id := producer.must(msg{"op": "enqueue", "queue": "q", "payload": "x"}).Job.ID
		worker, held := a.holdOne("q")
		if held.ID != id || held.Attempt != 1 {
			t.Fatalf("the worker holds %+v, want the job %s", held, id)
		}
		waiter.post(msg{"op": "claim", "queue": "q", "wait_ms": 30_000})
		at := worker.kill(t)
		r := waiter.next()
		took := since(at)
		if len(r.Jobs) != 1 || r.Jobs[0].ID != id || r.Jobs[0].Attempt != 2 || r.Jobs[0].Fence <= held.Fence {
			t.Fatalf("the waiting worker got %+v %v, want job %s, attempt 2, fence above %d", r.Jobs, r.Error, id, held.Fence)
		}
		producer.refused("lease_lost", msg{"op": "ack", "lease": held.Lease})
		waiter.must(msg{"op": "ack", "lease": r.Jobs[0].Lease})
		worst, sum = max(worst, took), sum+took
	}
	mean := sum / time.Duration(rounds)
	figure(t, "a killed worker's job is with another worker after %v on average, %v at worst (%d times)", mean.Round(10*time.Microsecond), worst.Round(10*time.Microsecond), rounds)
	if mean > 500*time.Millisecond {
		t.Errorf("it took %v on average", mean)
	}
}

// TestSidecarKilled: its jobs go to a second sidecar on the same file within the
// lease period.
func TestSidecarKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.hostLease = 2 * time.Second
	a, b := s.started("a"), s.started("b")
	var worst time.Duration
	rounds := max(4, size(25))
	for range rounds {
		worker := a.dial()
		ids := worker.enqueueN("q", 3)
		held := worker.must(msg{"op": "claim", "queue": "q", "max": 3}).Jobs
		if len(held) != len(ids) {
			t.Fatalf("claimed %d jobs, want %d", len(held), len(ids))
		}
		waiter := b.dial()
		waiter.post(msg{"op": "claim", "queue": "q", "max": 10, "wait_ms": 60_000})
		pass(time.Duration(rand.Int64N(int64(s.hostLease / 5)))) // another phase of the beat each time
		at := monotonic()
		a.kill()
		got := 0
		for got < len(ids) {
			jobs := waiter.next().Jobs
			for _, j := range jobs {
				if j.Attempt != 2 {
					t.Errorf("job %s comes with attempt %d, want 2", j.ID, j.Attempt)
				}
				waiter.must(msg{"op": "ack", "lease": j.Lease})
			}
			if got += len(jobs); got < len(ids) {
				waiter.post(msg{"op": "claim", "queue": "q", "max": 10, "wait_ms": 60_000})
			}
		}
		worst = max(worst, since(at))
		a.start()
		a.dial().refused("lease_lost", msg{"op": "ack", "lease": held[0].Lease})
	}
	figure(t, "a killed sidecar's jobs are with the second one after %v at worst (host_lease %v, %d times)",
		worst.Round(time.Millisecond), s.hostLease, rounds)
	if worst > 10*s.hostLease { // a loaded machine has its own delays: what it takes on a quiet one is printed
		t.Errorf("it took %v, which is far more than the lease period of %v", worst, s.hostLease)
	}
}

// TestDiesEachTime: a job whose worker dies each time runs out of attempts, backs
// off from the second loss on, and keeps every cause.
func TestDiesEachTime(t *testing.T) {
	t.Parallel()
	const attempts = 4
	s := newSite(t)
	s.queues = "  q: {max_attempts: 4, backoff: {initial: 600ms, max: 1h}}\n"
	a := s.started("a")
	c := a.dial()
	id := c.must(msg{"op": "enqueue", "queue": "q", "payload": "deadly"}).Job.ID
	var gaps []time.Duration
	lostAt := monotonic()
	for n := 1; n <= attempts; n++ {
		worker, held := a.holdOne("q")
		gaps = append(gaps, since(lostAt))
		if held.ID != id || held.Attempt != n || held.MaxAttempts != attempts {
			t.Fatalf("delivery %d: %+v", n, held)
		}
		lostAt = worker.kill(t)
		eventually(t, patience, "the job is taken back", func() bool { return c.stat("q").Claimed == 0 })
	}
	figure(t, "a job whose worker dies each time was delivered after %v", gaps)
	// The worker process's own start is in the gaps: they are compared with the
	// least that each back-off allows, and the first loss with the first back-off.
	if gaps[1] > 600*time.Millisecond {
		t.Errorf("after the first loss it took %v: the job should be ready at once", gaps[1])
	}
	for n, least := range map[int]time.Duration{2: 600 * time.Millisecond, 3: 1200 * time.Millisecond} {
		if gaps[n] < least {
			t.Errorf("loss %d: delivered again after %v, a back-off should take %v at least", n, gaps[n], least)
		}
	}
	if got := c.stat("q"); got.Dead != 1 || got.total() != 1 {
		t.Errorf("the queue has %+v, want one dead job", got)
	}
	job := c.must(msg{"op": "peek", "queue": "q", "ids": []string{id}}).Jobs[0]
	if job.State != "dead" || len(job.Errors) != attempts {
		t.Fatalf("the job is %s with the failures %+v, want dead with %d", job.State, job.Errors, attempts)
	}
	for i, f := range job.Errors {
		if f.Attempt != i+1 || f.Cause != "disconnected" {
			t.Errorf("failure %d is %+v, want attempt %d, disconnected", i, f, i+1)
		}
	}
}

// TestUnchargedNack: not now is not a failure.
func TestUnchargedNack(t *testing.T) {
	s := newSite(t)
	s.queues = "  q: {max_attempts: 2}\n"
	c := s.started("a").dial()
	id := c.must(msg{"op": "enqueue", "queue": "q", "payload": "later"}).Job.ID
	for range 5 {
		job := c.claimOne("q")
		if job.Attempt != 1 {
			t.Fatalf("attempt %d, want 1: a delivery that was not charged does not count", job.Attempt)
		}
		c.must(msg{"op": "nack", "lease": job.Lease, "charge": false, "delay_ms": 0})
	}
	if job := c.must(msg{"op": "peek", "queue": "q", "ids": []string{id}}).Jobs[0]; job.State != "ready" || len(job.Errors) != 0 {
		t.Errorf("the job is %s with the failures %+v, want ready with none", job.State, job.Errors)
	}
}
