package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestMySQLWakeUp: a claim that waits on one sidecar is answered soon after an
// enqueue through another, though nobody tells it.
func TestMySQLWakeUp(t *testing.T) {
	onMySQL(t, skipping[:1], func(t *testing.T, s *site, p *mysqlServer) {
		if _, p99 := wakeUps(t, s, size(500)/2); p99 > 10*time.Second {
			t.Errorf("p99 is %v, want at most ten times the second that any other due job may take", p99)
		}
	})
}

// TestMySQLIdle: what a thousand waiting workers cost.
func TestMySQLIdle(t *testing.T) {
	const workers, queues, watched = 1000, 20, 15 * time.Second // a beat is made every 5 s
	onMySQL(t, skipping[:1], func(t *testing.T, s *site, p *mysqlServer) {
		s.hostLease = 30 * time.Second
		sc := s.idleWorkers(workers, queues)
		before := p.statements()
		pass(watched)
		rate := float64(p.statements()-before-1) / watched.Seconds() // one was the second look's own
		ids, err := p.Connections(t.Context(), p.database)
		if err != nil {
			t.Fatal(err)
		}
		rss, _ := sc.rss()
		judgeIdle(t, workers, queues, rss, len(ids), rate, watched)
	})
}

// statements is how many the server was sent since it started.
func (p *mysqlServer) statements() (n int) {
	p.t.Helper()
	// information_schema in MySQL has none, and MariaDB lacks performance_schema.
	db, err := p.Open("")
	if err != nil {
		p.t.Fatal(err)
	}
	defer db.Close()
	var name string
	if err := db.QueryRowContext(context.Background(), "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n); err != nil {
		p.t.Fatal(err)
	}
	return n
}

// TestMySQLPlainInsert: another program enqueues by a plain INSERT, and a waiting
// claim is answered.
func TestMySQLPlainInsert(t *testing.T) {
	onMySQL(t, []testserver.Kind{testserver.MySQL97, testserver.MariaDB105}, func(t *testing.T, s *site, p *mysqlServer) {
		c := s.started("a").dial()
		db := p.open(t)
		const rounds = 3
		longest := time.Duration(0)
		for i := range rounds {
			c.post(msg{"op": "claim", "queue": "mail", "wait_ms": 60_000})
			pass(time.Second + time.Duration(rand.IntN(1000))*time.Millisecond) // its first look is over, and the poller's phase is any
			if _, err := db.ExecContext(t.Context(), "INSERT INTO qsidecar_jobs (queue, payload) VALUES ('mail', ?)", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			r := c.next()
			longest = max(longest, time.Since(began))
			if r.Error != nil || len(r.Jobs) != 1 || r.Jobs[0].Payload != fmt.Sprint(i) || r.Jobs[0].Attempt != 1 {
				t.Fatalf("answered %+v %v", r.Jobs, r.Error)
			}
			c.must(msg{"op": "ack", "lease": r.Jobs[0].Lease})
		}
		if left := p.jobs(t); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		figure(t, "a waiting claim was answered %v after another program had committed its plain INSERT (the longest of %d)",
			longest.Round(time.Millisecond), rounds)
		if longest > 2*time.Second {
			t.Errorf("a claim was answered after %v", longest)
		}
	})
}

// TestMySQLGone: the server is stopped for a while and started again.
func TestMySQLGone(t *testing.T) {
	kinds := skipping[1:] // its connections end without a word
	if soak {
		kinds = skipping
	}
	onMySQL(t, kinds, func(t *testing.T, s *site, p *mysqlServer) {
		goneForAWhile(t, s, p.MySQL, func() int {
			return len(p.query("SELECT CAST(id AS CHAR) FROM qsidecar_jobs WHERE queue = 'mail' AND state = 'ready' AND attempts = 0"))
		})
	})
}

// TestMySQLNoJobWaitsForASlowHost: as on PostgreSQL, where hosts are notified.
func TestMySQLNoJobWaitsForASlowHost(t *testing.T) {
	onMySQL(t, skipping[:1], func(t *testing.T, s *site, p *mysqlServer) { noJobWaitsForASlowHost(t, s) })
}
