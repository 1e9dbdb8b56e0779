package network

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// wakeUps makes a claim wait on one sidecar, enqueues through another, and prints how long the
// claim's reply took.
func wakeUps(t *testing.T, s *kit.Site, rounds int) {
	t.Helper()
	a, b := s.Start("a"), s.Start("b")
	from, to := a.Dial(), b.Dial()
	var took []time.Duration
	for i := range rounds {
		to.Post(kit.Msg{"op": "claim", "queue": "mail", "max": 10, "wait_ms": kit.WaitMS()})
		b.CaughtUp()
		began := kit.Monotonic()
		from.Must(kit.Msg{"op": "enqueue", "queue": "mail", "payload": fmt.Sprint(i)})
		r := to.Next()
		took = append(took, kit.Since(began))
		if r.Error != nil || len(r.Jobs) != 1 || r.Jobs[0].Payload != fmt.Sprint(i) {
			t.Fatalf("round %d: %v %v", i, r.Jobs, r.Error)
		}
		to.Must(kit.Msg{"op": "ack", "lease": r.Jobs[0].Lease})
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	kit.Figure(t, "a claim waiting on one sidecar is answered after an enqueue through another: p50 %v, p99 %v (%d rounds)",
		p50.Round(10*time.Microsecond), p99.Round(10*time.Microsecond), len(took))
}

// idleWorkers starts a sidecar with that many waiting claims.
func idleWorkers(s *kit.Site, workers, queues int) *kit.Sidecar {
	s.T.Helper()
	sc := s.Start("a")
	for i := range workers {
		sc.Dial().Post(kit.Msg{"op": "claim", "queue": fmt.Sprint("q", i%queues), "wait_ms": 600_000})
	}
	sc.CaughtUp()
	return sc
}

// watched is how long the server counts the statements of idle workers. A heartbeat takes place
// every 5 s.
const watched = 10 * time.Second

// judgeIdle prints the cost of waiting. The cost must not grow with the workers: over some seconds
// of the server's clock there are fewer statements than workers.
func judgeIdle(t *testing.T, workers, queues int, rss int64, connections, statements int) {
	t.Helper()
	rate := float64(statements) / watched.Seconds()
	kit.Figure(t, "%d idle workers waiting on %d queues: %.1f MiB resident (aim 50), %d database connections (aim 8), %.1f statements/s as the server counts them over %v (aim 2)",
		workers, queues, float64(rss)/(1<<20), connections, rate, watched)
	if rss > 500<<20 || connections > 80 || statements > workers {
		t.Error("more than ten times the aim")
	}
	if connections == 0 {
		t.Error("nothing was measured: a sidecar that waits has connections")
	}
}
