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
