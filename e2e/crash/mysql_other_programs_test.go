package crash

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestMySQLBesideOtherPrograms runs two sidecars and 32 workers on a server, at its default isolation
// level, beside two other programs. One uses its own queue table with the classic UPDATE … LIMIT 1.
// The other keeps a snapshot of all data for the whole run. Nothing blocks or is lost. The test
// prints the rate, and in a soak that of the same run without the others.
func TestMySQLBesideOtherPrograms(t *testing.T) {
	kit.OnMySQL(t, kit.SkipLockedKinds, func(t *testing.T, s *kit.Site, p *databases.MySQL) {
		level := p.Query("SELECT variable_value FROM " + variables(p) + " WHERE variable_name IN ('transaction_isolation', 'tx_isolation')")
		if len(level) == 0 || level[0] != "REPEATABLE-READ" {
			t.Fatalf("the server's default isolation level is %v: another one was to be tested", level)
		}
		sidecars := []*kit.Sidecar{s.Start("a"), s.Start("b")}
		beside := queueRun{t: t, queue: "beside", jobs: kit.Size(100_000), workers: 32, sidecars: sidecars}
		var before pace
		if kit.Soak {
			alone := beside
			alone.queue = "alone"
			before = alone.work(func() {})
		}
		var classic *classicLoop
		var held *snapshot
		after := beside.work(func() { // the jobs are enqueued, so the snapshot has them all
			classic, held = newClassicLoop(p), newSnapshot(p, beside.jobs)
		})
		taken := classic.end()
		held.end(beside.jobs)
		if left := p.Jobs(t); len(left) > 0 {
			t.Errorf("%d jobs are left", len(left))
		}
		if taken == 0 {
			t.Error("the classic loop claimed nothing")
		}
		met := p.Contention()
		kit.Figure(t, "%s, %d jobs by 32 workers and two sidecars: %s; beside a classic loop (it took %d) and a held snapshot: %s; %d deadlocks, %d lock waits timed out",
			p.Version, beside.jobs, before, taken, after, met.Deadlocks, met.Timeouts)
	})
}

// variables returns the name of the table with the server's settings.
func variables(p *databases.MySQL) string {
	if strings.Contains(p.Version, "MariaDB") {
		return "information_schema.global_variables"
	}
	return "performance_schema.global_variables"
}

// queueRun is a queue that is filled and then processed by workers that claim and ack one job at a
// time.
type queueRun struct {
	t        testing.TB
	queue    string
	jobs     int
	workers  int
	sidecars []*kit.Sidecar
}

// pace is the rate in jobs per second.
type pace struct{ all, first, last float64 } // jobs per second: of all, of the first and of the last fifth

func (p pace) String() string {
	return fmt.Sprintf("%.0f jobs/s (first fifth %.0f, last fifth %.0f)", p.all, p.first, p.last)
}

// work returns when the queue is empty. After filling the queue it calls ready.
func (q *queueRun) work(ready func()) pace {
	q.t.Helper()
	left := map[string]bool{}
	for _, id := range q.sidecars[0].Dial().Enqueue(q.queue, q.jobs) {
		left[id] = true
	}
	ready()
	var mu sync.Mutex
	began := kit.Monotonic()
	var fifths []time.Duration
	settled := func(id string) (over bool) {
		mu.Lock()
		defer mu.Unlock()
		if !left[id] {
			q.t.Errorf("job %s was settled twice, or is unknown", id)
		}
		delete(left, id)
		if n := q.jobs - len(left); n*5/q.jobs > len(fifths) {
			fifths = append(fifths, kit.Since(began))
		}
		return len(left) == 0
	}
	over := make(chan struct{})
	var all sync.WaitGroup
	for i := range q.workers {
		all.Go(func() { q.worker(q.sidecars[i%len(q.sidecars)].Socket, settled, over) })
	}
	all.Wait()
	if len(left) > 0 {
		q.t.Fatalf("%d of %d jobs were not delivered", len(left), q.jobs)
	}
	fifth := float64(q.jobs) / 5
	return pace{
		all:   float64(q.jobs) / fifths[4].Seconds(),
		first: fifth / fifths[0].Seconds(),
		last:  fifth / (fifths[4] - fifths[3]).Seconds(),
	}
}

// worker works until over is closed. It closes over with the last job.
func (q *queueRun) worker(socket string, settled func(string) bool, over chan struct{}) {
	w, err := kit.DialWire(socket)
	if err != nil {
		q.t.Error(err)
		return
	}
	defer w.Close()
	for {
		select {
		case <-over:
			return
		default:
		}
		if err := w.SetDeadline(testwait.Deadline()); err != nil {
			q.t.Error(err)
			return
		}
		r, err := w.Call(kit.Msg{"op": "claim", "queue": q.queue, "wait_ms": 200})
		if err != nil || r.Error != nil {
			q.t.Errorf("claim: %+v %v", r, err)
			return
		}
		for _, j := range r.Jobs {
			if r, err := w.Call(kit.Msg{"op": "ack", "lease": j.Lease}); err != nil || r.Error != nil {
				q.t.Errorf("ack: %+v %v", r, err)
				return
			}
			if settled(j.ID) {
				close(over)
			}
		}
	}
}

// classicLoop is an application with its own queue table.
type classicLoop struct {
	t       testing.TB
	db      *sql.DB
	stop    context.CancelFunc
	stopped chan struct{}
	taken   int
}

// newClassicLoop fills a table and starts the loop on it.
func newClassicLoop(p *databases.MySQL) *classicLoop {
	p.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &classicLoop{t: p.T, db: p.DB(p.T), stop: cancel, stopped: make(chan struct{})}
	if _, err := c.db.ExecContext(ctx, "CREATE TABLE classic (id int AUTO_INCREMENT PRIMARY KEY, state varchar(10) NOT NULL, worker int, KEY (state))"); err != nil {
		p.T.Fatal(err)
	}
	go func() {
		defer close(c.stopped)
		for {
			if err := c.claimRow(ctx); ctx.Err() != nil {
				return
			} else if err != nil {
				p.T.Errorf("the classic loop: %v", err)
				return
			}
		}
	}()
	p.T.Cleanup(func() { c.end() })
	return c
}

// claimRow claims a row and processes it. If no row is left, it adds some.
func (c *classicLoop) claimRow(ctx context.Context) error {
	r, err := c.db.ExecContext(ctx, "UPDATE classic SET state = 'taken', worker = CONNECTION_ID() WHERE state = 'new' ORDER BY id LIMIT 1")
	if err != nil {
		return err
	}
	n, err := r.RowsAffected()
	if err != nil {
		return err
	}
	if n == 0 {
		_, err = c.db.ExecContext(ctx, "INSERT INTO classic (state) VALUES ('new')"+strings.Repeat(", ('new')", 99))
		return err
	}
	c.taken++
	_, err = c.db.ExecContext(ctx, "DELETE FROM classic WHERE state = 'taken'")
	return err
}

// end stops the loop and returns how many rows it processed.
func (c *classicLoop) end() int {
	c.stop()
	<-c.stopped
	return c.taken
}

// snapshot is a session that keeps an old view of the data.
type snapshot struct {
	t testing.TB
	c *sql.Conn
}

// newSnapshot begins a snapshot that contains that many jobs.
func newSnapshot(p *databases.MySQL, jobs int) *snapshot {
	p.T.Helper()
	c, err := p.DB(p.T).Conn(context.Background())
	if err != nil {
		p.T.Fatal(err)
	}
	if _, err := c.ExecContext(context.Background(), "START TRANSACTION WITH CONSISTENT SNAPSHOT"); err != nil {
		p.T.Fatal(err)
	}
	p.T.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, sql.ErrConnDone) && !errors.Is(err, mysql.ErrInvalidConn) {
			p.T.Error(err)
		}
	})
	s := &snapshot{t: p.T, c: c}
	s.sees(jobs)
	return s
}

func (s *snapshot) sees(jobs int) {
	s.t.Helper()
	var n int
	if err := s.c.QueryRowContext(context.Background(), "SELECT COUNT(*) FROM qsidecar_jobs").Scan(&n); err != nil || n != jobs {
		s.t.Fatalf("the snapshot has %d jobs, want %d (%v)", n, jobs, err)
	}
}

// end checks that the snapshot was kept all the time, and ends it.
func (s *snapshot) end(jobs int) {
	s.t.Helper()
	s.sees(jobs)
	if _, err := s.c.ExecContext(context.Background(), "ROLLBACK"); err != nil {
		s.t.Error(err)
	}
	if err := s.c.Close(); err != nil {
		s.t.Error(err)
	}
}
