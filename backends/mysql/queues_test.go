package mysql

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// BenchmarkManyQueues prints what operations cost beside 100 and beside 10,000 queues, each with 20 ready jobs and one
// scheduled for tomorrow. The rows are the server's Handler_read counters. The statistics of all queues and the
// maintenance of a watcher depend on the number of queues.
//
//   - stats counts the jobs of all queues.
//   - look and watched-look are maintenance for workers that wait for 100 queues whose jobs are gone. A watcher looks for
//     the first scheduled job of each queue. A watched sidecar leaves the other queues to the watchers.
//   - claim stores a job, claims one, and acks the one before in a commit, each time in the next queue.
//   - claim-of-100 does the same. It claims from 100 queues, and only the last one has ready jobs.
//
// Run more claims than there are queues, so that there are more queues in use than cursors:
//
//	go test ./backends/mysql -run '^$' -bench ManyQueues -benchtime 100x
//	go test ./backends/mysql -run '^$' -bench ManyQueues/.*/claim -benchtime 20000x
func BenchmarkManyQueues(b *testing.B) {
	pages := core.PageRows
	core.PageRows = 2 * backends.StatsExact // as without tests
	defer func() { core.PageRows = pages }()
	durably(b, func(b *testing.B, m *testserver.MySQL) {
		for _, n := range []int{100, 10_000} {
			b.Run(fmt.Sprintf("queues=%d", n), func(b *testing.B) { manyQueues(b, m, n) })
		}
	})
}

func manyQueues(b *testing.B, m *testserver.MySQL, n int) {
	database := m.Database(b)
	s := open(b, Options{URL: m.URL(database)})
	join(b, s, 1)
	c := circulation{Store: s, b: b}
	gone := c.drain(100)
	must(b, m, database,
		fmt.Sprintf(`INSERT INTO qsidecar_queues (queue) SELECT CONCAT('queue', 1000 * a.i + 100 * b.i + 10 * c.i + d.i) FROM %[1]s a, %[1]s b, %[1]s c, %[1]s d WHERE 1000 * a.i + 100 * b.i + 10 * c.i + d.i < %[2]d`, digits, n),
		fmt.Sprintf(`INSERT INTO qsidecar_jobs (queue, state, payload, run_at)
			SELECT q.queue, IF(i = 0, 'scheduled', 'ready'), '', IF(i = 0, UTC_TIMESTAMP() + INTERVAL 1 DAY, NULL)
			FROM qsidecar_queues AS q, (SELECT 10 * a.i + b.i AS i FROM %[1]s a, %[1]s b WHERE 10 * a.i + b.i <= 20) AS x WHERE q.queue LIKE 'queue%%'`, digits),
		"ANALYZE TABLE qsidecar_jobs")
	look := func(watched bool) func(int) {
		return func(int) {
			if r, err := s.Maintain(b.Context(), backends.Maintenance{Waiting: gone, Limit: 10, Sidecar: 1, Watched: watched}); err != nil || len(r.Ready) > 0 {
				b.Fatal(r.Ready, err)
			}
		}
	}
	name := func(i int) string { return fmt.Sprintf("queue%d", i%n) }
	for _, op := range []struct {
		name string
		do   func(i int)
	}{
		{"stats", func(int) {
			if all, err := s.Stats(b.Context(), ""); err != nil || len(all) != n {
				b.Fatal(len(all), err)
			}
		}},
		{"look", look(false)},
		{"watched-look", look(true)},
		{"claim", func(i int) { c.turn(name(i), name(i)) }},
		{"claim-of-100", func(i int) { c.turn(name(i), append(gone[1:100:100], name(i))...) }},
	} {
		b.Run(op.name, func(b *testing.B) {
			work, cpu := counters(b, m), serverCPU(b, m)
			b.ResetTimer()
			for i := range b.N {
				op.do(i)
			}
			b.StopTimer()
			b.ReportMetric(float64((serverCPU(b, m)-cpu).Microseconds())/float64(b.N), "server-µs/op")
			read := float64(work()[0]) / float64(b.N)
			b.ReportMetric(read, "rows/op")
			if op.name == "stats" {
				b.ReportMetric(read/float64(n), "rows/queue")
			}
		})
	}
}

// circulation stores, claims and acks jobs.
type circulation struct {
	*Store
	b      *testing.B
	number uint64
	last   []backends.Lease
}

// turn acks the jobs that the last turn claimed, stores a job in a queue, and claims one from some queues.
func (c *circulation) turn(to string, from ...string) {
	c.b.Helper()
	c.number++
	batch := claimOf(1, 1, c.number)
	batch.Claims[0].Queues = nil
	for _, q := range from {
		batch.Claims[0].Queues = append(batch.Claims[0].Queues, backends.Policy{Queue: q, MaxAttempts: 20, RetainDead: time.Hour})
	}
	batch.Writes = []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: to}}}, backends.Ack{Leases: c.last}}
	r, err := c.Commit(c.b.Context(), batch)
	if err != nil || len(r.Claims[0].Jobs) != 1 {
		c.b.Fatal(r, err)
	}
	c.last = leasesOf(r.Claims[0].Jobs)
}

// drain returns n queues that have had a job each.
func (c *circulation) drain(n int) (queues []string) {
	c.b.Helper()
	for i := range n {
		queues = append(queues, fmt.Sprintf("gone%d", i))
		c.turn(queues[i], queues[i])
	}
	write(c.b, c.Store, backends.Ack{Leases: c.last})
	c.last = nil
	return queues
}

// counters returns a function that returns how many rows and index entries the server has read since then, and how many
// bytes it has received and sent, without those of the query for that.
func counters(b *testing.B, m *testserver.MySQL) func() [3]int64 {
	b.Helper()
	c := connect(b, m, "")
	read := func() (sums [3]int64) {
		b.Helper()
		rows, err := c.QueryContext(context.WithoutCancel(b.Context()), "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Handler_read%' OR Variable_name IN ('Bytes_received', 'Bytes_sent')")
		if err != nil {
			b.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var name string
			var n int64
			if err := rows.Scan(&name, &n); err != nil {
				b.Fatal(err)
			}
			sums[slices.Index([]string{"Bytes_received", "Bytes_sent"}, name)+1] += n // 0: a Handler_read counter
		}
		if err := rows.Err(); err != nil {
			b.Fatal(err)
		}
		return sums
	}
	read()
	first, before := read(), read()
	return func() [3]int64 {
		after := read()
		for i := range after {
			after[i] -= before[i] + before[i] - first[i]
		}
		return after
	}
}
