package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest/cost"
)

// BenchmarkLongWriter stores, claims and acks b.N jobs and a hundredth of them, 100 at a time, beside an open transaction of
// another program, and prints how many index entries that reads. A claimed job is one of claim_mode transaction. A run of less than
// 400 ms has no full scan. A longer one reads the jobs of the last 1.5 s again every 400 ms, which doesn't grow with n. Only if the
// transaction owns a position do full scans begin there, and grow. They take at most 1/20 of the time (cursor.Set.Pieces).
//
//	go test ./backends/postgres -run '^$' -bench LongWriter -benchtime 200000x
func BenchmarkLongWriter(b *testing.B) {
	p := durable(b)
	for name, sql := range map[string]string{
		"none": "SELECT 1", "writes": "CREATE TEMP TABLE z()", "locks jobs": "LOCK TABLE qsidecar.qsidecar_jobs IN ROW EXCLUSIVE MODE; SELECT pg_current_xact_id()", "owns a position": late,
		"prepared": "SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'", "claimed job": "SELECT pg_current_xact_id(), fence",
	} {
		for part, divisor := range map[string]int{"hundredth": 100, "all": 1} {
			b.Run(name+"/"+part, func(b *testing.B) { besideWriter(b, p.Database(b), sql, max(b.N/divisor, 1)) })
		}
	}
}

// besideWriter stores, claims and acks n jobs beside a transaction that ran a statement.
func besideWriter(b *testing.B, url, sql string, n int) {
	s := open(b, Options{URL: url})
	beat(b, s, 1)
	hold(b, url)
	other, err := pgx.Connect(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	defer other.Close(context.Background())
	if _, err := other.Exec(b.Context(), "BEGIN; "+strings.Replace(sql, "fence", s.Dialect().Fence(), 1)); err != nil {
		b.Fatal(err)
	}
	if strings.Contains(sql, "PREPARE") {
		defer must(b, url, "ROLLBACK PREPARED 'forgotten'")
	}
	before, cpu := entries(b, url), serverCPU(b)
	b.ResetTimer()
	for done := 0; done < n; done += 100 {
		fill(b, s, 100)
		jobs := take(b, s, 1, 100, uint64(done+1))
		var leases []backends.Lease
		for _, j := range jobs {
			leases = append(leases, j.Lease())
		}
		if _, err := s.Commit(b.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leases}}}); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	n = (n + 99) / 100 * 100
	b.ReportMetric(0, "ns/op") // it is for b.N jobs
	b.ReportMetric(float64(n), "jobs")
	b.ReportMetric(float64((serverCPU(b)-cpu).Microseconds())/float64(n), "server-µs/job")
	if err := s.Close(); err != nil { // its sessions report what they read
		b.Fatal(err)
	}
	b.ReportMetric(float64(entries(b, url)-before)/float64(n), "entries/job")
}

// BenchmarkCommands retries and purges b.N dead jobs and a hundredth of them, each with one command.
//
//	go test ./backends/postgres -run '^$' -bench Commands -benchtime 1000000x
func BenchmarkCommands(b *testing.B) {
	p := durable(b)
	cost.Commands(b, func(b *testing.B, n int, run func(backends.Inspector, func() time.Duration)) {
		url := p.Database(b)
		s := open(b, Options{URL: url})
		must(b, url, fmt.Sprintf("INSERT INTO qsidecar.qsidecar_jobs (queue, state, finished_at, payload) SELECT 'q', 'dead', now(), 'p' FROM generate_series(1, %d)", n))
		before := entries(b, url)
		run(s, func() time.Duration { return serverCPU(b) })
		if err := s.Close(); err != nil { // its sessions report what they read
			b.Fatal(err)
		}
		b.ReportMetric(float64(entries(b, url)-before)/float64(n), "entries/job")
	})
}

// BenchmarkPurgeHeld purges 2,000 and 20,000 jobs while another connection keeps a snapshot open.
func BenchmarkPurgeHeld(b *testing.B) {
	p := durable(b)
	for _, n := range []int{2_000, 20_000} {
		for _, state := range []backends.State{backends.StateReady, backends.StateDead} {
			b.Run(fmt.Sprintf("%s/jobs=%d", state, n), func(b *testing.B) {
				for range b.N {
					url := p.Database(b)
					s := open(b, Options{URL: url})
					must(b, url, fmt.Sprintf(`INSERT INTO qsidecar.qsidecar_jobs (queue, state, finished_at) SELECT 'q', '%s', CASE '%[1]s' WHEN 'dead' THEN now() END FROM generate_series(1, %d)`, state, n))
					hold(b, url)
					before := entries(b, url)
					if got, _, err := s.Command(b.Context(), backends.Command{Kind: backends.Purge, Queue: "q", State: state}); err != nil || got != int64(n) {
						b.Fatal(got, err)
					}
					if err := s.Close(); err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(entries(b, url)-before)/float64(n), "entries/job")
				}
			})
		}
	}
}

// entries returns how many index entries the sessions of a database have read that have ended, also those of dead rows.
func entries(t testing.TB, url string) (n int64) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	if err := c.QueryRow(t.Context(), "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE schemaname = 'qsidecar'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// BenchmarkDueHeld looks for due work b.N times, every 800 ms of a virtual clock, beside n claims and n scheduled jobs that
// are gone, while another connection keeps a snapshot open.
//
//	go test ./backends/postgres -run '^$' -bench DueHeld -benchtime 200x
func BenchmarkDueHeld(b *testing.B) {
	p := durable(b)
	for _, watched := range []bool{false, true} {
		for _, n := range []int{2_000, 200_000} {
			b.Run(fmt.Sprintf("watched=%t/gone=%d", watched, n), func(b *testing.B) {
				url := p.Database(b)
				s := open(b, Options{URL: url})
				must(b, url, fmt.Sprintf(`INSERT INTO qsidecar.qsidecar_jobs (queue, state, run_at, due_at)
					SELECT 'q', s, CASE s WHEN 'scheduled' THEN now() + interval '1 s' END, CASE s WHEN 'claimed' THEN now() - n * interval '1 ms' END
					FROM generate_series(1, %d) n CROSS JOIN unnest('{scheduled,claimed}'::text[]) s`, n))
				hold(b, url)
				must(b, url, "DELETE FROM qsidecar.qsidecar_jobs")
				later := time.Duration(0)
				s.LocalTime = func() time.Time { return time.Now().Add(later) }
				before := entries(b, url)
				b.ResetTimer()
				for range b.N {
					later += 800 * time.Millisecond
					if _, err := s.Maintain(b.Context(), backends.Maintenance{Limit: 10, Sidecar: 1, Watched: watched}); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(entries(b, url)-before)/float64(b.N), "entries/op")
			})
		}
	}
}
