package network

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/child"
)

// TestPostgresWakeUp checks that a claim which waits on one sidecar is answered after an enqueue
// through another.
func TestPostgresWakeUp(t *testing.T) {
	fewer := map[string]int{"on": 1, "off": 2} // rounds; without notifications each takes half a second
	for notify, by := range fewer {
		t.Run("notify-"+notify, func(t *testing.T) {
			s, _ := kit.NewPostgresSite(t)
			s.DatabaseOptions = ", notify: " + notify
			wakeUps(t, s, kit.Size(200)/by)
		})
	}
}

// TestPostgresIdle measures the cost of a thousand waiting workers.
func TestPostgresIdle(t *testing.T) {
	const workers, queues = 1000, 20
	s, p := kit.NewPostgresSite(t)
	if err := p.Exec(t.Context(), fmt.Sprintf("ALTER DATABASE %s SET log_statement = 'all'", p.Name)); err != nil {
		t.Fatal(err)
	}
	sc := idleWorkers(s, workers, queues)
	before := len(p.Log())
	p.Query(p.Admin(), "SELECT pg_sleep($1)::text", watched.Seconds())
	output := p.Log()[before:]
	statements := strings.Count(output, "LOG:  execute ") + strings.Count(output, "LOG:  statement: ")
	connections := len(p.ConnectionIDs())
	rss, _ := sc.RSS()
	judgeIdle(t, workers, queues, rss, connections, statements)
}

// inserter runs the documented plain INSERT in the database of a URL, like a program that uses only SQL.
var inserter = child.NewMode("insert", func(url string, _ <-chan struct{}) error {
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	_, err = c.Exec(ctx, "INSERT INTO qsidecar.qsidecar_jobs (queue, payload) VALUES ('mail', 'hello')")
	return err
})

// TestPostgresPlainInsert checks that a waiting claim is answered after another program's
// documented plain INSERT.
func TestPostgresPlainInsert(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	sc := s.Start("a")
	c := sc.Dial()
	const rounds = 5
	longest := time.Duration(0)
	for range rounds {
		c.Post(kit.Msg{"op": "claim", "queue": "mail", "wait_ms": kit.WaitMS()})
		sc.CaughtUp()
		w := inserter.Start(t, child.Options{Name: "inserter"}, p.URL)
		w.Stop(t) // it exits when the transaction is committed
		began := kit.Monotonic()
		r := c.Next()
		longest = max(longest, kit.Since(began))
		if r.Error != nil || len(r.Jobs) != 1 || r.Jobs[0].Payload != "hello" || r.Jobs[0].Attempt != 1 {
			t.Fatalf("answered %+v %v", r.Jobs, r.Error)
		}
		c.Must(kit.Msg{"op": "ack", "lease": r.Jobs[0].Lease})
	}
	if left := p.Jobs(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	kit.Figure(t, "a waiting claim was answered %v after another process had committed its plain INSERT (the longest of %d)",
		longest.Round(time.Millisecond), rounds)
}
