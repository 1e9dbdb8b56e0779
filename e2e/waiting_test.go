package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// wakeUps measures how long after an enqueue through one sidecar a claim that
// waits on another is answered.
func wakeUps(t *testing.T, s *site, rounds int) (p50, p99 time.Duration) {
	t.Helper()
	from, to := s.started("a").dial(), s.started("b").dial()
	var took []time.Duration
	for i := range rounds {
		to.post(msg{"op": "claim", "queue": "mail", "max": 10, "wait_ms": 60_000})
		pass(time.Duration(rand.IntN(300)) * time.Millisecond) // the poller calms down, and its phase is any
		began := time.Now()
		from.must(msg{"op": "enqueue", "queue": "mail", "payload": fmt.Sprint(i)})
		r := to.next()
		took = append(took, time.Since(began))
		if r.Error != nil || len(r.Jobs) != 1 || r.Jobs[0].Payload != fmt.Sprint(i) {
			t.Fatalf("round %d: %v %v", i, r.Jobs, r.Error)
		}
		to.must(msg{"op": "ack", "lease": r.Jobs[0].Lease})
	}
	slices.Sort(took)
	p50, p99 = took[len(took)/2], took[len(took)*99/100]
	figure(t, "a claim waiting on one sidecar is answered after an enqueue through another: p50 %v, p99 %v (%d rounds)",
		p50.Round(10*time.Microsecond), p99.Round(10*time.Microsecond), len(took))
	return p50, p99
}

// idleWorkers starts a sidecar with so many waiting claims and returns when
// their first looks are over.
func (s *site) idleWorkers(workers, queues int) *sidecar {
	s.t.Helper()
	sc := s.started("a")
	for i := range workers {
		sc.dial().post(msg{"op": "claim", "queue": fmt.Sprint("q", i%queues), "wait_ms": 600_000})
	}
	pass(3 * time.Second)
	return sc
}

// judgeIdle prints what waiting costs and compares it with ten times the aim.
func judgeIdle(t *testing.T, workers, queues int, rss int64, connections int, rate float64, watched time.Duration) {
	t.Helper()
	figure(t, "%d idle workers waiting on %d queues: %.1f MiB resident (aim 50), %d database connections (aim 8), %.1f statements/s as the server counts them over %v (aim 2)",
		workers, queues, float64(rss)/(1<<20), connections, rate, watched)
	if rss > 500<<20 || connections > 80 || rate > 20 {
		t.Error("more than ten times the aim")
	}
	if connections == 0 || rate == 0 {
		t.Error("nothing was measured: a sidecar that waits has connections and asks")
	}
}
