package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// TestPostgresGone: the server is stopped for a while and started again.
func TestPostgresGone(t *testing.T) {
	s, p := newPostgresSite(t)
	goneForAWhile(t, s, p.Postgres, func() int {
		return len(p.query(p.url, "SELECT id::text FROM qsidecar.qsidecar_jobs WHERE queue = 'mail' AND state = 'ready' AND attempts = 0"))
	})
}

// halting is a server that can be stopped for a while.
type halting interface {
	Halt() error
	Go(ctx context.Context) error
}

// goneForAWhile stops the server under two sidecars and starts it again. fresh
// counts the ready jobs of the queue mail that were never delivered.
func goneForAWhile(t *testing.T, s *site, p halting, fresh func() int) {
	t.Helper()
	gone := 5 * time.Second
	if soak {
		gone = time.Minute
	}
	s.hostLease = gone + 30*time.Second
	sidecars := []*sidecar{s.started("a"), s.started("b")}
	producer := sidecars[0].dial()
	ids := producer.enqueueN("mail", 20)
	var workers, waiting []*conn
	var held []wireJob
	for _, sc := range sidecars {
		w := sc.dial()
		for range 4 {
			held = append(held, w.claimOne("mail"))
			workers = append(workers, w)
		}
		w = sc.dial()
		w.post(msg{"op": "claim", "queue": "later", "wait_ms": 600_000})
		waiting = append(waiting, w)
	}
	if err := p.Halt(); err != nil {
		t.Fatal(err)
	}
	down := time.Now()
	slowest := time.Duration(0)
	for _, sc := range sidecars {
		slowest = max(slowest, sc.refusesUnavailable())
	}
	pass(gone - min(time.Since(down), gone))
	// An ack under way when the server comes back is carried out.
	workers[0].post(msg{"op": "ack", "lease": held[0].Lease})
	up := comeBack(t, p)
	lasted := time.Since(down)
	if r := workers[0].next(); r.Error != nil {
		t.Errorf("the ack that was under way: %v", r.Error)
	}
	for i, job := range held[1:] {
		workers[i+1].must(msg{"op": "ack", "lease": job.Lease})
	}
	settled := time.Since(up)
	sidecars[1].dial().enqueueN("later", len(waiting))
	for _, w := range waiting {
		if r := w.next(); r.Error != nil || len(r.Jobs) != 1 {
			t.Errorf("a claim that waited through it all: %d jobs, %v", len(r.Jobs), r.Error)
		}
	}
	if left := fresh(); left != len(ids)-len(held) {
		t.Errorf("%d ready jobs that were never delivered, want %d", left, len(ids)-len(held))
	}
	for _, sc := range sidecars {
		if !sc.alive() {
			t.Errorf("%s ended", sc.name)
		}
		sc.logsAnOutage()
	}
	figure(t, "the server was gone for %v: unavailable was answered within %v, all held leases were acked %v after it was back",
		lasted.Round(time.Millisecond), slowest.Round(time.Millisecond), settled.Round(time.Millisecond))
}

// refusesUnavailable checks what is answered while the server is gone, and
// returns how long the slowest answer took.
func (sc *sidecar) refusesUnavailable() time.Duration {
	sc.t.Helper()
	began := time.Now()
	c := sc.dial()
	c.must(msg{"op": "ping"})
	for _, req := range []msg{
		{"op": "enqueue", "queue": "mail", "payload": "x"},
		{"op": "claim", "queue": "mail"},
		{"op": "stats", "queue": "mail"},
	} {
		if e := c.refused("unavailable", req); e.RetryMS <= 0 {
			sc.t.Errorf("%s: %v says unavailable without retry_ms", sc.name, req["op"])
		}
	}
	return time.Since(began)
}

// comeBack starts the halted server and returns when it answered.
func comeBack(t *testing.T, p halting) time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.Go(ctx); err != nil {
		t.Fatal(fmt.Errorf("starting the server again: %w", err))
	}
	return time.Now()
}
