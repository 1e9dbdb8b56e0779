package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// BenchmarkManyQueues prints what operations cost beside 100 and beside 10,000 queues, each with 20 ready jobs and one
// scheduled for tomorrow. Only the statistics of all queues depend on the number of queues, and per queue they cost the same.
//
//   - stats counts the jobs of all queues.
//   - look and watched-look are maintenance for workers that wait for 100 queues whose jobs are gone. A watched sidecar
//     leaves the other queues to the watchers.
//   - claim stores a job, claims one, and acks the one before in a commit, each time in the next queue.
//   - claim-of-100 does the same. It claims from 100 queues, and only the last one has ready jobs.
//
// Run more claims than there are queues, so that there are more queues in use than cursors:
//
//	go test ./backends/postgres -run '^$' -bench ManyQueues -benchtime 100x
//	go test ./backends/postgres -run '^$' -bench ManyQueues/.*/claim -benchtime 20000x
func BenchmarkManyQueues(b *testing.B) {
	pages := core.PageRows
	core.PageRows = 2 * backends.StatsExact // as without tests
	defer func() { core.PageRows = pages }()
	p := durable(b)
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("queues=%d", n), func(b *testing.B) { manyQueues(b, p.Database(b), n) })
	}
}

func manyQueues(b *testing.B, url string, n int) {
	s := open(b, Options{URL: url})
	beat(b, s, 1)
	c := circulation{Store: s, b: b}
	gone := c.drain(100)
	must(b, url, fmt.Sprintf(`INSERT INTO qsidecar.qsidecar_jobs (queue, state, run_at)
		SELECT 'queue' || q, CASE i WHEN 0 THEN 'scheduled' ELSE 'ready' END, CASE i WHEN 0 THEN now() + interval '1 day' END
		FROM generate_series(1, %d) q CROSS JOIN generate_series(0, 20) i`, n))
	must(b, url, "VACUUM ANALYZE")
	must(b, url, "CHECKPOINT")
	look := func(watched bool) func(int) {
		return func(int) {
			if r, err := s.Maintain(b.Context(), backends.Maintenance{Waiting: gone, Limit: 10, Sidecar: 1, Watched: watched}); err != nil || len(r.Ready) > 0 {
				b.Fatal(r.Ready, err)
			}
		}
	}
	name := func(i int) string { return fmt.Sprintf("queue%d", i%n+1) }
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
			flush(b, s)
			before, cpu := entries(b, url), serverCPU(b)
			b.ResetTimer()
			for i := range b.N {
				op.do(i)
			}
			b.StopTimer()
			b.ReportMetric(float64((serverCPU(b)-cpu).Microseconds())/float64(b.N), "server-µs/op")
			flush(b, s)
			read := float64(entries(b, url)-before) / float64(b.N)
			b.ReportMetric(read, "entries/op")
			if op.name == "stats" {
				b.ReportMetric(read/float64(n), "entries/queue")
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
	claim := backends.Claim{Slots: []backends.Slot{{Token: backends.Token{Sidecar: 1, Number: c.number}, Worker: "w"}}, MaxBytes: 1 << 22, MaxPayload: 1 << 22}
	for _, q := range from {
		claim.Queues = append(claim.Queues, backends.Policy{Queue: q, MaxAttempts: 20, RetainDead: time.Hour})
	}
	writes := []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: to}}}, backends.Ack{Leases: c.last}}
	r, err := c.Commit(c.b.Context(), backends.CommitContent{Sidecar: 1, Writes: writes, Claims: []backends.Claim{claim}})
	if err != nil || len(r.Claims[0].Jobs) != 1 {
		c.b.Fatal(r, err)
	}
	c.last = []backends.Lease{r.Claims[0].Jobs[0].Lease()}
}

// drain returns n queues that have had a job each.
func (c *circulation) drain(n int) (queues []string) {
	c.b.Helper()
	for i := range n {
		queues = append(queues, fmt.Sprintf("gone%d", i))
		c.turn(queues[i], queues[i])
	}
	if _, err := c.Commit(c.b.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: c.last}}}); err != nil {
		c.b.Fatal(err)
	}
	c.last = nil
	return queues
}

// flush lets the sessions of an idle Store report what they have read, so that entries and traffic see it.
func flush(b *testing.B, s *Store) {
	b.Helper()
	report := func(c *pgx.Conn) {
		if c == nil {
			return
		}
		if _, err := c.Exec(b.Context(), "SELECT pg_stat_force_next_flush()"); err != nil {
			b.Fatal(err)
		}
	}
	for _, c := range s.pool.AcquireAllIdle(b.Context()) {
		report(c.Conn())
		c.Release()
	}
	c := <-s.heartbeat.free
	report(c)
	s.heartbeat.put(c)
}
