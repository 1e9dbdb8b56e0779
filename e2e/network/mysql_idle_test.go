package network

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestMySQLWakeUp checks that a claim which waits on one sidecar is answered soon after an enqueue
// through another, although MySQL has no notifications.
func TestMySQLWakeUp(t *testing.T) {
	kit.OnMySQL(t, kit.SkipLockedKinds[:1], func(t *testing.T, s *kit.Site, p *databases.MySQL) {
		wakeUps(t, s, kit.Size(200)/2)
	})
}

// TestMySQLIdle measures the cost of a thousand waiting workers.
func TestMySQLIdle(t *testing.T) {
	const workers, queues = 1000, 20
	kit.OnMySQL(t, kit.SkipLockedKinds[:1], func(t *testing.T, s *kit.Site, p *databases.MySQL) {
		sc := idleWorkers(s, workers, queues)
		before := statements(p)
		p.Query("SELECT SLEEP(?)", watched.Seconds())
		asked := statements(p) - before
		ids, err := p.Connections(t.Context(), p.Name)
		if err != nil {
			t.Fatal(err)
		}
		rss, _ := sc.RSS()
		judgeIdle(t, workers, queues, rss, len(ids), asked)
	})
}

// statements returns how many statements the server got since it started.
func statements(p *databases.MySQL) (n int) {
	p.T.Helper()
	// information_schema in MySQL has no counter, and MariaDB has no performance_schema.
	db, err := p.Open("")
	if err != nil {
		p.T.Fatal(err)
	}
	defer db.Close()
	var name string
	if err := db.QueryRowContext(context.Background(), "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n); err != nil {
		p.T.Fatal(err)
	}
	return n
}

// TestMySQLPlainInsert checks that a waiting claim is answered after another program's plain
// INSERT.
func TestMySQLPlainInsert(t *testing.T) {
	kit.OnMySQL(t, []testserver.Kind{testserver.MySQL97, testserver.MariaDB105}, func(t *testing.T, s *kit.Site, p *databases.MySQL) {
		sc := s.Start("a")
		c := sc.Dial()
		db := p.DB(t)
		const rounds = 3
		longest := time.Duration(0)
		for i := range rounds {
			c.Post(kit.Msg{"op": "claim", "queue": "mail", "wait_ms": kit.WaitMS()})
			sc.CaughtUp()
			if _, err := db.ExecContext(t.Context(), "INSERT INTO qsidecar_jobs (queue, payload) VALUES ('mail', ?)", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
			began := kit.Monotonic()
			r := c.Next()
			longest = max(longest, kit.Since(began))
			if r.Error != nil || len(r.Jobs) != 1 || r.Jobs[0].Payload != fmt.Sprint(i) || r.Jobs[0].Attempt != 1 {
				t.Fatalf("answered %+v %v", r.Jobs, r.Error)
			}
			c.Must(kit.Msg{"op": "ack", "lease": r.Jobs[0].Lease})
		}
		if left := p.Jobs(t); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		kit.Figure(t, "a waiting claim was answered %v after another program had committed its plain INSERT (the longest of %d)",
			longest.Round(time.Millisecond), rounds)
	})
}

// TestMySQLOutage stops the server for a while and restarts it.
func TestMySQLOutage(t *testing.T) {
	kinds := kit.SkipLockedKinds[1:] // its connections end without a message
	if kit.Soak {
		kinds = kit.SkipLockedKinds
	}
	kit.OnMySQL(t, kinds, func(t *testing.T, s *kit.Site, p *databases.MySQL) {
		checkOutage(t, s, p.MySQL, func() int {
			return len(p.Query("SELECT CAST(id AS CHAR) FROM qsidecar_jobs WHERE queue = 'mail' AND state = 'ready' AND attempts = 0"))
		})
	})
}

// TestMySQLNoJobWaitsForASlowHost does the same as on PostgreSQL, which notifies hosts.
func TestMySQLNoJobWaitsForASlowHost(t *testing.T) {
	kit.OnMySQL(t, kit.SkipLockedKinds[:1], func(t *testing.T, s *kit.Site, p *databases.MySQL) { noJobWaitsForASlowHost(t, s) })
}
