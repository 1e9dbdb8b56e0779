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
			if _, err := s.Heartbeat(b.Context(), backends.Heartbeat{Host: me, Kind: backends.HeartbeatJoin, Timeout: time.Hour}); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			var number uint64
			for done := 0; done < b.N; {
				claim := backends.Claim{Queues: []backends.Policy{policy("e")}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}
				for i := range min(n, b.N-done) {
					number++
					claim.Slots = append(claim.Slots, backends.Slot{Token: backends.Token{Host: me, Number: number}, Worker: fmt.Sprint("w", i)})
				}
				r, err := s.Commit(b.Context(), backends.Batch{Host: me, Claims: []backends.Claim{claim}})
				if err != nil {
					b.Fatal(err)
				}
				var acks []backends.Write
				for _, j := range r.Claims[0].Jobs {
					acks = append(acks, backends.Ack{Leases: []backends.Lease{j.Lease()}})
				}
				settled, err := s.Commit(b.Context(), backends.Batch{Writes: acks})
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
