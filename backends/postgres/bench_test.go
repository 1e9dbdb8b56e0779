package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest/cost"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// The benchmarks claim n jobs and ack the n previous ones in one commit, on one
// connection at a time, with full durability. b.N is the number of jobs.
//
//	go test ./backends/postgres -run '^$' -bench . -benchtime 100000x

var batchSizes = []int{1, 32, 100, 1000}

// durable returns a server of the newest version that syncs its commits.
func durable(b *testing.B) *testserver.Postgres {
	b.Helper()
	return serve(b, testserver.Options{Durable: true, Settings: map[string]string{"max_prepared_transactions": "10"}})
}

// serve returns a server of the newest version.
func serve(b *testing.B, o testserver.Options) *testserver.Postgres {
	b.Helper()
	versions := testserver.Versions()
	p, err := testserver.StartPostgres(b.Context(), versions[len(versions)-1], o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := p.Stop(); err != nil {
			b.Error(err)
		}
	})
	return p
}

func BenchmarkClaimAck(b *testing.B) {
	p := durable(b)
	for _, n := range batchSizes {
		b.Run(fmt.Sprintf("raw/%d", n), func(b *testing.B) { rate(b, rawRound(b, p.Database(b), n)) })
		b.Run(fmt.Sprintf("store/%d", n), func(b *testing.B) { rate(b, storeRound(b, p.Database(b), n)) })
	}
}

// BenchmarkEnqueue stores n jobs in one commit. Its raw variant is a plain INSERT from an array.
func BenchmarkEnqueue(b *testing.B) {
	p := durable(b)
	for _, n := range batchSizes {
		b.Run(fmt.Sprintf("raw/%d", n), func(b *testing.B) {
			jobs, url := b.N, p.Database(b)
			b.N = 0
			rawRound(b, url, 1)
			b.N = jobs
			c, err := pgx.Connect(b.Context(), url)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close(context.Background())
			left := b.N
			rate(b, func() int {
				k := min(n, left)
				left -= k
				payloads := make([][]byte, k)
				for i := range payloads {
					payloads[i] = make([]byte, 100)
				}
				if k > 0 {
					if _, err := c.Exec(b.Context(), "INSERT INTO raw (payload) SELECT * FROM unnest($1::bytea[]) RETURNING id", payloads); err != nil {
						b.Fatal(err)
					}
				}
				return k
			})
		})
		b.Run(fmt.Sprintf("store/%d", n), func(b *testing.B) {
			s := open(b, Options{URL: p.Database(b)})
			left := b.N
			rate(b, func() int {
				k := min(n, left)
				left -= k
				fill(b, s, k)
				return k
			})
		})
	}
}

// BenchmarkHeldSnapshot does the same while another connection keeps a snapshot open:
// with a backlog, and with a queue that every claim finds nearly empty.
func BenchmarkHeldSnapshot(b *testing.B) {
	p := durable(b)
	for _, held := range []bool{false, true} {
		b.Run(fmt.Sprintf("backlog/held=%t", held), func(b *testing.B) {
			url := p.Database(b)
			round := storeRound(b, url, 32)
			if held {
				hold(b, url)
			}
			rate(b, round)
		})
		b.Run(fmt.Sprintf("flow/held=%t", held), func(b *testing.B) {
			url := p.Database(b)
			n := b.N
			b.N = 0 // no jobs are stored beforehand
			round := storeRound(b, url, 64)
			b.N = n
			s := open(b, Options{URL: url})
			if held {
				hold(b, url)
			}
			left := n
			rate(b, func() int {
				fill(b, s, min(32, left))
				left -= min(32, left)
				return round()
			})
		})
	}
}

// hold opens a transaction that keeps its snapshot until the benchmark ends.
func hold(b *testing.B, url string) {
	b.Helper()
	c, err := pgx.Connect(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	for _, sql := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1 FROM qsidecar.qsidecar_meta"} {
		if _, err := c.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBacklog does the same in a table with a million jobs each that are ready (in
// another queue, and later in this one), scheduled for tomorrow, and dead.
func BenchmarkBacklog(b *testing.B) {
	p := durable(b)
	for _, rows := range []int{0, 1_000_000} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			url := p.Database(b)
			round := storeRound(b, url, 32)
			must(b, url, fmt.Sprintf(`INSERT INTO qsidecar.qsidecar_jobs (queue, state, payload, run_at, finished_at)
				SELECT CASE n %% 2 WHEN 0 THEN 'q' ELSE 'p' END, s, decode(repeat('00', 100), 'hex'),
					CASE s WHEN 'scheduled' THEN now() + interval '1 day' END, CASE s WHEN 'dead' THEN now() END
				FROM generate_series(1, %d) n CROSS JOIN unnest('{ready,scheduled,dead}'::text[]) s`, rows))
			must(b, url, "VACUUM ANALYZE")
			must(b, url, "CHECKPOINT")
			left := b.N
			rate(b, func() int {
				if left == 0 {
					return 0
				}
				n := min(round(), left)
				left -= n
				return n
			})
		})
	}
}

// rate runs rounds until a round returns 0.
func rate(b *testing.B, round func() int) {
	b.ResetTimer()
	total := 0
	server, client := serverCPU(b), cost.ProcessCPU(b)
	for n := round(); n > 0; n = round() {
		total += n
	}
	b.StopTimer()
	if total != b.N {
		b.Errorf("%d jobs were given, want %d", total, b.N)
	}
	b.ReportMetric(float64(total)/b.Elapsed().Seconds(), "jobs/s")
	b.ReportMetric(float64((serverCPU(b)-server).Microseconds())/float64(total), "server-µs/job")
	b.ReportMetric(float64((cost.ProcessCPU(b)-client).Microseconds())/float64(total), "client-µs/job")
}

// serverCPU returns the CPU time that the server's sessions have used so far. The sessions are
// the processes named postgres whose arguments name one of the benchmark's databases.
func serverCPU(b *testing.B) (total time.Duration) {
	b.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range files {
		args, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(args), "postgres: postgres t"+strconv.Itoa(os.Getpid())+"_") {
			continue // it ended, or is another process
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(f), "stat"))
		if err != nil {
			continue
		}
		field := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
		for _, n := range field[11:13] { // user and system time in hundredths of a second
			ticks, err := strconv.Atoi(n)
			if err != nil {
				b.Fatal(err)
			}
			total += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return total
}

func storeRound(b *testing.B, url string, n int) func() int {
	s := open(b, Options{URL: url})
	fill(b, s, b.N)
	must(b, url, "VACUUM ANALYZE")
	must(b, url, "CHECKPOINT")
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

func fill(b testing.TB, s *Store, n int) {
	b.Helper()
	for n > 0 {
		var e backends.Enqueue
		for range min(n, 2000) {
			e.Jobs = append(e.Jobs, backends.NewJob{Queue: "q", Payload: make([]byte, 100)})
		}
		n -= len(e.Jobs)
		if _, err := s.Commit(b.Context(), backends.CommitContent{Writes: []backends.Write{e}}); err != nil {
			b.Fatal(err)
		}
	}
}

// rawRound measures the server's limit, with a minimal table and minimal statements.
func rawRound(b *testing.B, url string, n int) func() int {
	c, err := pgx.Connect(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	for _, sql := range []string{
		`CREATE TABLE raw (id bigserial PRIMARY KEY, state smallint NOT NULL DEFAULT 0, payload bytea NOT NULL)`,
		`CREATE INDEX ON raw (id) WHERE state = 0`,
		fmt.Sprintf(`INSERT INTO raw (payload) SELECT decode(repeat('00', 100), 'hex') FROM generate_series(1, %d)`, b.N),
		`VACUUM ANALYZE raw`, `CHECKPOINT`,
	} {
		if _, err := c.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
	var last []int64
	return func() int {
		batch := &pgx.Batch{}
		batch.Queue("BEGIN")
		batch.Queue("DELETE FROM raw WHERE id = ANY($1)", last)
		var got []int64
		batch.Queue(`WITH c AS MATERIALIZED (SELECT id FROM raw WHERE state = 0 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
			UPDATE raw r SET state = 1 FROM c WHERE r.id = c.id RETURNING r.id, r.payload`, n).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var id int64
				var payload []byte
				if err := rows.Scan(&id, &payload); err != nil {
					return err
				}
				got = append(got, id)
			}
			return nil
		})
		batch.Queue("COMMIT")
		if err := errors.Join(c.SendBatch(b.Context(), batch).Close()); err != nil {
			b.Fatal(err)
		}
		last = got
		return len(got)
	}
}
