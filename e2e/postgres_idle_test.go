package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// TestPostgresWakeUp: a claim that waits on one sidecar is answered at an enqueue
// through another.
func TestPostgresWakeUp(t *testing.T) {
	fewer := map[string]int{"on": 1, "off": 2} // rounds: without, each takes half a second
	for notify, by := range fewer {
		t.Run("notify-"+notify, func(t *testing.T) {
			s, _ := newPostgresSite(t)
			s.database = ", notify: " + notify
			p50, p99 := wakeUps(t, s, size(500)/by)
			if most := 2 * time.Second; p99 > most {
				t.Errorf("p99 is %v, want at most %v", p99, most)
			}
			if most := 250 * time.Millisecond; notify == "on" && p50 > most {
				t.Errorf("p50 is %v, want at most %v", p50, most)
			}
		})
	}
}

// TestPostgresIdle: what a thousand waiting workers cost.
func TestPostgresIdle(t *testing.T) {
	const workers, queues, watched = 1000, 20, 15 * time.Second // a beat is made every 5 s
	s, p := newPostgresSite(t)
	s.hostLease = 30 * time.Second
	if err := p.Exec(t.Context(), fmt.Sprintf("ALTER DATABASE %s SET log_statement = 'all'", p.database)); err != nil {
		t.Fatal(err)
	}
	sc := s.idleWorkers(workers, queues)
	before := len(p.Log())
	pass(watched)
	said := p.Log()[before:]
	statements := strings.Count(said, "LOG:  execute ") + strings.Count(said, "LOG:  statement: ")
	rate := float64(statements) / watched.Seconds()
	connections := len(p.backends())
	rss, _ := sc.rss()
	judgeIdle(t, workers, queues, rss, connections, rate, watched)
}

// TestPostgresPlainInsert: another program enqueues by a plain INSERT, the one
// that the schema documents, and a waiting claim is answered.
func TestPostgresPlainInsert(t *testing.T) {
	s, p := newPostgresSite(t)
	c := s.started("a").dial()
	const rounds = 5
	longest := time.Duration(0)
	for range rounds {
		c.post(msg{"op": "claim", "queue": "mail", "wait_ms": 60_000})
		pass(time.Second + time.Duration(rand.IntN(1000))*time.Millisecond) // its first look is over, and the poller's phase is any
		w := startWorker(t, modeInsert, workerTask{Name: "inserter", Socket: p.url}, nil)
		w.stop(t) // it ends by itself, once the transaction is committed
		began := time.Now()
		r := c.next()
		longest = max(longest, time.Since(began))
		if r.Error != nil || len(r.Jobs) != 1 || r.Jobs[0].Payload != "hello" || r.Jobs[0].Attempt != 1 {
			t.Fatalf("answered %+v %v", r.Jobs, r.Error)
		}
		c.must(msg{"op": "ack", "lease": r.Jobs[0].Lease})
	}
	if left := p.jobs(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	figure(t, "a waiting claim was answered %v after another process had committed its plain INSERT (the longest of %d)",
		longest.Round(time.Millisecond), rounds)
	if longest > time.Second {
		t.Errorf("a claim was answered after %v, want a second at most", longest)
	}
}
