package adopted_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/postgres"
	pgdiagnose "github.com/qsidecar/qsidecar/backends/postgres/diagnose"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// BenchmarkSystemE claims jobs, each for a worker of its own, and acks them. It runs on PostgreSQL
// without durability, to measure the costs besides the disk. b.N is the number of jobs.
//
//	go test ./backends/adopted -run '^$' -bench SystemE -benchtime 20000x
func BenchmarkSystemE(b *testing.B) {
	for _, n := range []int{1, 32, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			url := server.Database(b)
			engine, err := postgres.Open(b.Context(), postgres.Options{URL: url})
			if err != nil {
				b.Fatal(err)
			}
			defer engine.Close()
			c := connect(b, url)
			if _, err := c.Exec(b.Context(), systemE+fmt.Sprintf("; INSERT INTO my_queue (parameters) SELECT '1' FROM generate_series(1, %d); ANALYZE my_queue", b.N)); err != nil {
				b.Fatal(err)
			}
			s, err := adopted.New(b.Context(), pgdiagnose.New(engine), map[string]mapping.Table{"e": tableE()})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := s.Heartbeat(b.Context(), backends.Heartbeat{Sidecar: me, Kind: backends.HeartbeatJoin, Timeout: time.Hour}); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			var number uint64
			for done := 0; done < b.N; {
				claim := backends.Claim{Queues: []backends.Policy{policy("e")}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}
				for i := range min(n, b.N-done) {
					number++
					claim.Slots = append(claim.Slots, backends.Slot{Token: backends.Token{Sidecar: me, Number: number}, Worker: fmt.Sprint("w", i)})
				}
				r, err := s.Commit(b.Context(), backends.CommitContent{Sidecar: me, Claims: []backends.Claim{claim}})
				if err != nil {
					b.Fatal(err)
				}
				var acks []backends.Write
				for _, j := range r.Claims[0].Jobs {
					acks = append(acks, backends.Ack{Leases: []backends.Lease{j.Lease()}})
				}
				settled, err := s.Commit(b.Context(), backends.CommitContent{Writes: acks})
				if err != nil {
					b.Fatal(err)
				}
				for _, w := range settled.Writes {
					if len(w.Lost) > 0 {
						b.Fatal("a lease was lost")
					}
				}
				done += len(acks)
			}
		})
	}
}

// BenchmarkBlockedHead claims jobs behind n dead ones in a table that has no state for dead jobs, and prints how many
// index entries a claim reads. b.N is the number of claims. The first one, and then one a second, reads the dead jobs.
//
//	go test ./backends/adopted -run '^$' -bench BlockedHead -benchtime 100x
func BenchmarkBlockedHead(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprintf("dead=%d", n), func(b *testing.B) {
			url := server.Database(b)
			engine, err := postgres.Open(b.Context(), postgres.Options{URL: url})
			if err != nil {
				b.Fatal(err)
			}
			c := connect(b, url)
			if _, err := c.Exec(b.Context(), systemE+fmt.Sprintf(`; INSERT INTO my_queue (parameters) SELECT '1' FROM generate_series(1, %d);
				INSERT INTO qsidecar.qsidecar_leases (id, queue, item, fence, attempts, losses, not_before, claim_max, backoff_ms, backoff_max_ms, changed_at)
				SELECT n, 'e', n, 1, 1, 0, 9223372036854775807, 1, 0, 0, 0 FROM generate_series(1, %d) n; ANALYZE my_queue`, n+b.N, n)); err != nil {
				b.Fatal(err)
			}
			table := tableE()
			delete(table.States, backends.StateDead)
			s, err := adopted.New(b.Context(), pgdiagnose.New(engine), map[string]mapping.Table{"e": table})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := s.Heartbeat(b.Context(), backends.Heartbeat{Sidecar: me, Kind: backends.HeartbeatJoin, Timeout: time.Hour}); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for i := range b.N {
				r, err := s.Commit(b.Context(), backends.CommitContent{Sidecar: me, Claims: []backends.Claim{{
					Queues: []backends.Policy{policy("e")}, Slots: []backends.Slot{{Token: backends.Token{Sidecar: me, Number: uint64(i + 1)}}}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}}})
				if err != nil || len(r.Claims[0].Jobs) != 1 {
					b.Fatal(len(r.Claims[0].Jobs), err)
				}
			}
			b.StopTimer()
			if err := engine.Close(); err != nil { // its sessions report what they read
				b.Fatal(err)
			}
			testwait.Until(b, "the end of the sessions", func() bool {
				var others int
				err := c.QueryRow(b.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()").Scan(&others)
				return err == nil && others == 0
			})
			var read int64
			if err := c.QueryRow(b.Context(), "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes").Scan(&read); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(read)/float64(b.N), "entries/op")
		})
	}
}
