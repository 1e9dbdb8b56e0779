package network

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestPostgresOutage stops the server for a while and restarts it.
func TestPostgresOutage(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	checkOutage(t, s, p.Postgres, func() int {
		return len(p.Query(p.URL, "SELECT id::text FROM qsidecar.qsidecar_jobs WHERE queue = 'mail' AND state = 'ready' AND attempts = 0"))
	})
}

// stoppableServer is a server that can be stopped for a while.
type stoppableServer interface {
	Halt() error
	Restart(ctx context.Context) error
}

// checkOutage stops the server under two sidecars and restarts it. fresh counts the ready jobs of
// the queue mail that were never delivered.
func checkOutage(t *testing.T, s *kit.Site, p stoppableServer, fresh func() int) {
	t.Helper()
	s.SidecarTimeout = time.Minute // longer than a restart of the server takes on a busy machine
	sidecars := []*kit.Sidecar{s.Start("a"), s.Start("b")}
	producer := sidecars[0].Dial()
	ids := producer.Enqueue("mail", 20)
	var workers, waiting []*kit.Conn
	var held []kit.Job
	for _, sc := range sidecars {
		w := sc.Dial()
		for range 4 {
			held = append(held, w.ClaimOne("mail"))
			workers = append(workers, w)
		}
		w = sc.Dial()
		w.Post(kit.Msg{"op": "claim", "queue": "later", "wait_ms": 600_000})
		waiting = append(waiting, w)
	}
	if err := p.Halt(); err != nil {
		t.Fatal(err)
	}
	down := kit.Monotonic()
	slowest := time.Duration(0)
	for _, sc := range sidecars {
		slowest = max(slowest, refusesUnavailable(sc))
	}
	// An ack in progress succeeds when the server is back.
	workers[0].Post(kit.Msg{"op": "ack", "lease": held[0].Lease})
	up := restartServer(t, p)
	lasted := kit.Since(down)
	if r := workers[0].Next(); r.Error != nil {
		t.Errorf("the ack that was under way: %v", r.Error)
	}
	for i, job := range held[1:] {
		workers[i+1].Must(kit.Msg{"op": "ack", "lease": job.Lease})
	}
	settled := kit.Since(up)
	sidecars[1].Dial().Enqueue("later", len(waiting))
	for _, w := range waiting {
		if r := w.Next(); r.Error != nil || len(r.Jobs) != 1 {
			t.Errorf("a claim that waited through it all: %d jobs, %v", len(r.Jobs), r.Error)
		}
	}
	if left := fresh(); left != len(ids)-len(held) {
		t.Errorf("%d ready jobs that were never delivered, want %d", left, len(ids)-len(held))
	}
	for _, sc := range sidecars {
		if !sc.Alive() {
			t.Errorf("%s ended", sc.Name)
		}
		logsAnOutage(sc)
	}
	kit.Figure(t, "the server was gone for %v: unavailable was answered within %v, all held leases were acked %v after it was back",
		lasted.Round(time.Millisecond), slowest.Round(time.Millisecond), settled.Round(time.Millisecond))
}

// refusesUnavailable checks the replies while the server is down, and returns how long the slowest
// one took.
func refusesUnavailable(sc *kit.Sidecar) time.Duration {
	sc.T.Helper()
	began := kit.Monotonic()
	c := sc.Dial()
	c.Must(kit.Msg{"op": "ping"})
	for _, req := range []kit.Msg{
		{"op": "enqueue", "queue": "mail", "payload": "x"},
		{"op": "claim", "queue": "mail"},
		{"op": "stats", "queue": "mail"},
	} {
		if e := c.MustFail("unavailable", req); e.RetryMS <= 0 {
			sc.T.Errorf("%s: %v is unavailable without retry_ms", sc.Name, req["op"])
		}
	}
	return kit.Since(began)
}

// restartServer restarts the server and returns when it answered.
func restartServer(t *testing.T, p stoppableServer) (at int64) {
	t.Helper()
	if err := p.Restart(testwait.Context(t)); err != nil {
		t.Fatal(fmt.Errorf("starting the server again: %w", err))
	}
	return kit.Monotonic()
}
