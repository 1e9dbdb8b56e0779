package mysql

import (
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest/cost"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// BenchmarkCommands retries and purges b.N dead jobs and a hundredth of them, each with one command.
//
//	go test ./backends/mysql -run '^$' -bench 'Commands/(MySQL9.7|MariaDB10.11)' -benchtime 1000000x
func BenchmarkCommands(b *testing.B) {
	durably(b, func(b *testing.B, m *testserver.MySQL) {
		cost.Commands(b, func(b *testing.B, n int, run func(backends.Inspector, func() time.Duration)) {
			name := m.Database(b)
			s := open(b, Options{URL: m.URL(name)})
			insert(b, m, name, n, "state, finished_at, payload", "'dead', UTC_TIMESTAMP(), 'p'")
			before := rowsRead(b, m)
			run(s, func() time.Duration { return serverCPU(b, m) })
			b.ReportMetric(float64(rowsRead(b, m)-before)/float64(n), "rows-read/job")
		})
	})
}

// BenchmarkDueHeld looks for due work b.N times, every 800 ms of a virtual clock, beside n claims and n scheduled jobs that
// were due more than 10 s ago and are gone, while another connection keeps a snapshot open. The rows that a query reads don't include
// these, though InnoDB passes them. So it also prints the reads of pages. They grow with n for a watcher. See queryFirstDue.
//
//	go test ./backends/mysql -run '^$' -bench 'DueHeld/(MySQL9.7|MariaDB10.11)' -benchtime 200x
func BenchmarkDueHeld(b *testing.B) {
	durably(b, func(b *testing.B, m *testserver.MySQL) {
		for _, watched := range []bool{false, true} {
			for _, n := range []int{2_000, 200_000} {
				b.Run(fmt.Sprintf("watched=%t/gone=%d", watched, n), func(b *testing.B) { dueHeld(b, m, n, watched) })
			}
		}
	})
}

func dueHeld(b *testing.B, m *testserver.MySQL, n int, watched bool) {
	name := m.Database(b)
	s := open(b, Options{URL: m.URL(name)})
	join(b, s, 1)
	const due = "UTC_TIMESTAMP() - INTERVAL 10000000 + x.i * 1000 MICROSECOND"
	insert(b, m, name, n, "state, run_at", "'scheduled', "+due)
	insert(b, m, name, n, "state, owner, token_sidecar, token_number, claimed_at, due_at", "'claimed', 1, 1, x.i, UTC_TIMESTAMP(), "+due)
	must(b, m, name, "INSERT INTO qsidecar_queues (queue) VALUES ('q')")
	hold(b, m, name)
	must(b, m, name, "DELETE FROM qsidecar_jobs")
	later := time.Duration(0)
	s.LocalTime = func() time.Time { return time.Now().Add(later) }
	const rows, pages = "Handler_read%", "Innodb_buffer_pool_read_requests"
	rowsBefore, pagesBefore, cpu := status(b, m, rows), status(b, m, pages), serverCPU(b, m)
	b.ResetTimer()
	for range b.N {
		later += 800 * time.Millisecond
		if _, err := s.Maintain(b.Context(), backends.Maintenance{Limit: 10, Sidecar: 1, Watched: watched}); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64((serverCPU(b, m)-cpu).Microseconds())/float64(b.N), "server-µs/op")
	b.ReportMetric(float64(status(b, m, rows)-rowsBefore)/float64(b.N), "rows-read/op")
	b.ReportMetric(float64(status(b, m, pages)-pagesBefore)/float64(b.N), "page-reads/op")
}

// insert stores n jobs of "q" with these further columns. The values can use i, which is less than 1,000,000.
func insert(b *testing.B, m *testserver.MySQL, name string, n int, columns, values string) {
	b.Helper()
	const atOnce = 50_000
	for from := 0; from < n; from += atOnce {
		must(b, m, name, fmt.Sprintf(`INSERT INTO qsidecar_jobs (queue, %s)
			WITH RECURSIVE n AS (SELECT 0 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 999)
			SELECT 'q', %s FROM (SELECT %d + 1000 * a.i + b.i AS i FROM n AS a, n AS b WHERE a.i < %d LIMIT %d) AS x`, columns, values, from, atOnce/1000, min(n-from, atOnce)))
	}
}

// rowsRead returns how many rows all sessions of the server have read, in sequence or by a key.
func rowsRead(b *testing.B, m *testserver.MySQL) int64 { return status(b, m, "Handler_read%") }

// status returns the sum of the server's counters with these names.
func status(b *testing.B, m *testserver.MySQL, names string) (sum int64) {
	b.Helper()
	db, err := m.Open("")
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(b.Context(), "SHOW GLOBAL STATUS LIKE '"+names+"'")
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
		sum += n
	}
	if err := rows.Err(); err != nil {
		b.Fatal(err)
	}
	return sum
}
