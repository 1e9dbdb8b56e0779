package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest/cost"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// The benchmarks claim n jobs and ack the previous n in one commit, on one connection at a time, with full
// durability. b.N is the number of jobs.
//
//	go test ./backends/mysql -run '^$' -bench . -benchtime 50000x

var batchSizes = []int{1, 32, 100, 1000}

// durably runs a benchmark on each kind of server, with its vendor's default settings.
func durably(b *testing.B, f func(b *testing.B, m *testserver.MySQL)) {
	for _, kind := range testserver.MySQLKinds() {
		b.Run(strings.ReplaceAll(string(kind), " ", ""), func(b *testing.B) {
			m, err := testserver.StartMySQL(b.Context(), kind, testserver.Options{Durable: true})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				if err := m.Stop(); err != nil {
					b.Error(err)
				}
			})
			f(b, m)
		})
	}
}

func BenchmarkClaimAck(b *testing.B) {
	durably(b, func(b *testing.B, m *testserver.MySQL) {
		for _, n := range batchSizes {
			b.Run(fmt.Sprintf("raw/%d", n), func(b *testing.B) { rate(b, m, rawRound(b, m, n, b.N)) })
			b.Run(fmt.Sprintf("store/%d", n), func(b *testing.B) { rate(b, m, storeRound(b, m, m.Database(b), n)) })
		}
	})
}

// BenchmarkEnqueue stores n jobs in one commit; raw is a plain INSERT of n rows.
func BenchmarkEnqueue(b *testing.B) {
	durably(b, func(b *testing.B, m *testserver.MySQL) {
		for _, n := range batchSizes {
			b.Run(fmt.Sprintf("raw/%d", n), func(b *testing.B) {
				db := rawTable(b, m)
				left := b.N
				rate(b, m, func() int {
					k := min(n, left)
					left -= k
					rawFill(b, db, k)
					return k
				})
			})
			b.Run(fmt.Sprintf("store/%d", n), func(b *testing.B) {
				s := open(b, Options{URL: m.URL(m.Database(b))})
				left := b.N
				rate(b, m, func() int {
					k := min(n, left)
					left -= k
					fillBy(b, s, k, n)
					return k
				})
			})
		}
	})
}

// BenchmarkSettle settles b.N jobs, 100 in a commit, and prints the server's CPU time for each.
//
//	go test ./backends/mysql -run '^$' -bench 'Settle/(MySQL9.7|MariaDB10.11)' -benchtime 20000x
func BenchmarkSettle(b *testing.B) {
	durably(b, func(b *testing.B, m *testserver.MySQL) {
		nack := func(l []backends.Lease) backends.Write { return backends.Nack{Leases: l, Error: "failed"} }
		ack := func(l []backends.Lease) backends.Write { return backends.Ack{Leases: l} }
		for _, c := range []struct {
			name   string
			kept   time.Duration
			settle func(l []backends.Lease) backends.Write
		}{{"ack", 0, ack}, {"ack-kept", time.Hour, ack}, {"nack", 0, nack}} {
			b.Run(c.name, func(b *testing.B) {
				s := open(b, Options{URL: m.URL(m.Database(b))})
				join(b, s, 1)
				fillBy(b, s, b.N, 1000)
				var leases []backends.Lease
				for len(leases) < b.N {
					batch := claimOf(1, min(1000, b.N-len(leases)), uint64(1+len(leases)))
					batch.Claims[0].Queues[0].RetainDone = c.kept
					r, err := s.Commit(b.Context(), batch)
					if err != nil {
						b.Fatal(err)
					}
					leases = append(leases, leasesOf(r.Claims[0].Jobs)...)
				}
				cpu := serverCPU(b, m)
				b.ResetTimer()
				for part := range slices.Chunk(leases, 100) {
					write(b, s, c.settle(part))
				}
				b.StopTimer()
				b.ReportMetric(float64((serverCPU(b, m)-cpu).Microseconds())/float64(b.N), "server-µs/job")
			})
		}
	})
}

// BenchmarkHeldSnapshot measures claim and ack while another connection keeps a snapshot: with a backlog, and with a queue that every
// claim finds nearly empty. Run it for longer than 10 s, because the server then counts the rows again, and finds hardly any.
//
//	go test ./backends/mysql -run '^$' -bench HeldSnapshot -benchtime 150000x
func BenchmarkHeldSnapshot(b *testing.B) {
	durably(b, func(b *testing.B, m *testserver.MySQL) {
		for _, held := range []bool{false, true} {
			b.Run(fmt.Sprintf("backlog/held=%t", held), func(b *testing.B) {
				name := m.Database(b)
				round := storeRound(b, m, name, 32)
				if held {
					hold(b, m, name)
				}
				rate(b, m, round)
			})
			b.Run(fmt.Sprintf("flow/held=%t", held), func(b *testing.B) {
				name := m.Database(b)
				left := b.N
				b.N = 0 // nothing is stored beforehand
				round := storeRound(b, m, name, 64)
				b.N = left
				s := open(b, Options{URL: m.URL(name)})
				if held {
					hold(b, m, name)
				}
				rate(b, m, func() int {
					k := min(32, left)
					left -= k
					fillBy(b, s, k, 32)
					return round()
				})
			})
		}
	})
}

// BenchmarkBacklog measures claim and ack beside half a million jobs each that are ready (in another queue
// and behind in this one), scheduled for tomorrow, and dead.
func BenchmarkBacklog(b *testing.B) {
	durably(b, func(b *testing.B, m *testserver.MySQL) {
		for _, rows := range []int{0, 500_000} {
			b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
				name := m.Database(b)
				round := storeRound(b, m, name, 32)
				for n := 0; n < rows; n += 50_000 {
					must(b, m, name, fmt.Sprintf(`INSERT INTO qsidecar_jobs (queue, state, payload, run_at, finished_at)
						WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000), m AS (SELECT i FROM n WHERE i <= %d)
						SELECT IF(n.i %% 2 = 0, 'q', 'p'), s.s, REPEAT('0', 100), IF(s.s = 'scheduled', UTC_TIMESTAMP() + INTERVAL 1 DAY, NULL), IF(s.s = 'dead', UTC_TIMESTAMP(), NULL)
						FROM n, m, (SELECT 'ready' AS s UNION ALL SELECT 'scheduled' UNION ALL SELECT 'dead') AS s`, min(rows-n, 50_000)/1000))
				}
				left := b.N
				rate(b, m, func() int {
					if left == 0 {
						return 0
					}
					n := min(round(), left)
					left -= n
					return n
				})
			})
		}
	})
}

// hold opens a transaction that keeps its snapshot until the benchmark ends.
func hold(b testing.TB, m *testserver.MySQL, name string) {
	b.Helper()
	db, err := m.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	tx, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := tx.Rollback(); err != nil {
			b.Error(err)
		}
		if err := db.Close(); err != nil {
			b.Error(err)
		}
	})
	var n int
	if err := tx.QueryRow("SELECT COUNT(*) FROM qsidecar_meta").Scan(&n); err != nil {
		b.Fatal(err)
	}
}

// rate runs rounds until one returns 0.
func rate(b *testing.B, m *testserver.MySQL, round func() int) {
	b.ResetTimer()
	began, total := time.Now(), 0
	server, client := serverCPU(b, m), cost.ProcessCPU(b)
	for n := round(); n > 0; n = round() {
		total += n
	}
	b.StopTimer()
	if total != b.N {
		b.Errorf("%d jobs were given, want %d", total, b.N)
	}
	b.ReportMetric(float64(total)/time.Since(began).Seconds(), "jobs/s")
	b.ReportMetric(float64((serverCPU(b, m)-server).Microseconds())/float64(total), "server-µs/job")
	b.ReportMetric(float64((cost.ProcessCPU(b)-client).Microseconds())/float64(total), "client-µs/job")
}

// serverCPU returns the CPU time that the server has used so far; 0: it is not on this host.
func serverCPU(b *testing.B, m *testserver.MySQL) (total time.Duration) {
	b.Helper()
	if m.PID() == 0 {
		return 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.PID()))
	if err != nil {
		b.Fatal(err)
	}
	field := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	for _, n := range field[11:13] { // user and system time in hundredths of a second
		ticks, err := strconv.Atoi(n)
		if err != nil {
			b.Fatal(err)
		}
		total += time.Duration(ticks) * 10 * time.Millisecond
	}
	return total
}

func storeRound(b *testing.B, m *testserver.MySQL, name string, n int) func() int {
	s := open(b, Options{URL: m.URL(name)})
	fillBy(b, s, b.N, 1000)
	const host = 1
	if _, err := s.Heartbeat(b.Context(), backends.Heartbeat{Sidecar: host, Timeout: time.Hour}); err != nil {
		b.Fatal(err)
	}
	var last []backends.Lease
	number := uint64(0)
	return func() int {
		c := backends.Claim{Queues: []backends.Policy{{Queue: "q", MaxAttempts: 20, RetainDead: time.Hour}}, MaxBytes: 1 << 22, MaxPayload: 1 << 22}
		for range n {
			number++
			c.Slots = append(c.Slots, backends.Slot{Token: backends.Token{Sidecar: host, Number: number}, Worker: "bench"})
		}
		batch := backends.CommitContent{Sidecar: host, Claims: []backends.Claim{c}}
		if len(last) > 0 {
			batch.Writes = []backends.Write{backends.Ack{Leases: last}}
		}
		r, err := s.Commit(b.Context(), batch)
		if err != nil {
			b.Fatal(err)
		}
		last = last[:0]
		for _, j := range r.Claims[0].Jobs {
			last = append(last, backends.Lease{Job: j.ID, Token: j.Token})
		}
		return len(last)
	}
}

// fillBy stores n jobs, with up to a given number in one commit.
func fillBy(b testing.TB, s *Store, n, by int) {
	b.Helper()
	for n > 0 {
		var e backends.Enqueue
		for range min(n, by) {
			e.Jobs = append(e.Jobs, backends.NewJob{Queue: "q", Payload: make([]byte, 100)})
		}
		n -= len(e.Jobs)
		if _, err := s.Commit(b.Context(), backends.CommitContent{Writes: []backends.Write{e}}); err != nil {
			b.Fatal(err)
		}
	}
}

func rawTable(b *testing.B, m *testserver.MySQL) *sql.Conn {
	c := m.Config(m.Database(b))
	c.MultiStatements, c.InterpolateParams = true, true
	db, err := sql.Open("mysql", c.FormatDSN())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := db.Close(); err != nil {
			b.Error(err)
		}
	})
	conn, err := db.Conn(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := conn.Close(); err != nil {
			b.Error(err)
		}
	})
	for _, sql := range []string{
		"CREATE TABLE raw (id BIGINT AUTO_INCREMENT PRIMARY KEY, state TINYINT NOT NULL DEFAULT 0, payload LONGBLOB NOT NULL, KEY (state, id))",
		"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
	} {
		if _, err := conn.ExecContext(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
	return conn
}

func rawFill(b *testing.B, c *sql.Conn, n int) {
	for n > 0 {
		k := min(n, 1000)
		n -= k
		args := make([]any, k)
		for i := range args {
			args[i] = make([]byte, 100)
		}
		if _, err := c.ExecContext(b.Context(), "INSERT INTO raw (payload) VALUES (?)"+strings.Repeat(", (?)", k-1), args...); err != nil {
			b.Fatal(err)
		}
	}
}

// rawRound returns a round with the smallest table and statements, as an upper bound for the server.
func rawRound(b *testing.B, m *testserver.MySQL, n, jobs int) func() int {
	c := rawTable(b, m)
	rawFill(b, c, jobs)
	skip := " SKIP LOCKED"
	if m.Kind == testserver.MariaDB105 {
		skip = ""
	}
	var last []int64
	return func() int {
		sql := "START TRANSACTION;"
		if len(last) > 0 {
			sql += "DELETE FROM raw WHERE id IN (" + session.List(last) + ");"
		}
		rows, err := c.QueryContext(b.Context(), sql+fmt.Sprintf("SELECT id, payload FROM raw WHERE state = 0 ORDER BY id LIMIT %d FOR UPDATE%s", n, skip))
		if err != nil {
			b.Fatal(err)
		}
		last = nil
		for rows.Next() {
			var id int64
			var payload []byte
			if err := rows.Scan(&id, &payload); err != nil {
				b.Fatal(err)
			}
			last = append(last, id)
		}
		if err := rows.Close(); err != nil {
			b.Fatal(err)
		}
		sql = "COMMIT"
		if len(last) > 0 {
			sql = "UPDATE raw SET state = 1 WHERE id IN (" + session.List(last) + "); COMMIT"
		}
		if _, err := c.ExecContext(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
		return len(last)
	}
}
