package sqlite

import (
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest/cost"
)

// BenchmarkEnqueue and BenchmarkClaimAck measure jobs of 100 bytes, n to a commit. The first
// stores them. The second claims and acks them, with the acks of the last batch and the claim
// of the next one in one commit.
func BenchmarkEnqueue(b *testing.B) {
	for _, n := range []int{1, 32, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := fresh(b)
			for b.Loop() {
				fill(b, s, n)
			}
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}

func BenchmarkClaimAck(b *testing.B) {
	for _, backlog := range []int{0, 200_000} {
		for _, n := range []int{1, 32, 1000} {
			b.Run(fmt.Sprintf("backlog=%d/%d", backlog, n), func(b *testing.B) {
				s := fresh(b)
				for range backlog / 1000 {
					fill(b, s, 1000)
				}
				claimAck(b, s, n)
			})
		}
	}
}

func claimAck(b *testing.B, s *Store, n int) {
	const host = 1
	if _, err := s.Heartbeat(b.Context(), backends.Heartbeat{Sidecar: host, Timeout: 1 << 40}); err != nil {
		b.Fatal(err)
	}
	var last []backends.Lease
	number := uint64(0)
	for b.Loop() {
		b.StopTimer()
		fill(b, s, n)
		b.StartTimer()
		c := backends.Claim{Queues: []backends.Policy{{Queue: "q", MaxAttempts: 20}}, MaxBytes: 1 << 22, MaxPayload: 1 << 20}
		for range n {
			number++
			c.Slots = append(c.Slots, backends.Slot{Token: backends.Token{Sidecar: host, Number: number}, Worker: "worker"})
		}
		r, err := s.Commit(b.Context(), backends.CommitContent{
			Sidecar: host, Writes: []backends.Write{backends.Ack{Leases: last}}, Claims: []backends.Claim{c},
		})
		if err != nil || len(r.Writes[0].Lost) != 0 || len(r.Claims[0].Jobs) != n {
			b.Fatalf("%v, %d lost, %d given", err, len(r.Writes[0].Lost), len(r.Claims[0].Jobs))
		}
		last = last[:0]
		for _, j := range r.Claims[0].Jobs {
			last = append(last, backends.Lease{Job: j.ID, Token: j.Token})
		}
	}
	b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "jobs/s")
}

// BenchmarkCommands retries and purges b.N dead jobs and a hundredth of them, each with one command. SQLite runs in this process,
// and doesn't count what it reads.
//
//	go test ./backends/sqlite -run '^$' -bench Commands -benchtime 1000000x
func BenchmarkCommands(b *testing.B) {
	cost.Commands(b, func(b *testing.B, n int, run func(backends.Inspector, func() time.Duration)) {
		s := fresh(b)
		if err := exec(b, s, fmt.Sprintf(`WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < %d)
			INSERT INTO qsidecar_jobs (queue, state, position, finished_at, payload) SELECT 'q', 'dead', i, i, 'p' FROM c`, n)); err != nil {
			b.Fatal(err)
		}
		run(s, func() time.Duration { return 0 })
	})
}

func fill(b *testing.B, s *Store, n int) {
	jobs := make([]backends.NewJob, n)
	for i := range jobs {
		jobs[i] = backends.NewJob{Queue: "q", Payload: make([]byte, 100)}
	}
	if _, err := s.Commit(b.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}}); err != nil {
		b.Fatal(err)
	}
}
