package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest/fleet"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestFleet checks how sidecars share the work of watching each other.
func TestFleet(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		fleet.Check(t, newSchemas(t, p.Database(t)).take)
	})
}

// joinFleet stores the rows of n living sidecars, each with a claimed job. Their identities are 1 to n.
func joinFleet(t testing.TB, url string, n int) {
	t.Helper()
	must(t, url, fmt.Sprintf(`INSERT INTO qsidecar.qsidecar_sidecars (sidecar, name, heartbeats, expires_at, timeout_ms, max_version, joined_at)
		SELECT n, 'host' || n || ':1', 1, now() + interval '1 hour', 3600000, 5, now() FROM generate_series(1, %d) n;
		INSERT INTO qsidecar.qsidecar_jobs (queue, state, owner, token_sidecar, token_number, claimed_at)
		SELECT 'busy', 'claimed', n, n, 1, now() FROM generate_series(1, %[1]d) n`, n))
}

// BenchmarkFleet does what n sidecars, each with a claimed job and a waiting worker, do in a second without other work:
// their heartbeats and maintenance. One operation is such a second.
//
//	go test ./backends/postgres -run '^$' -bench Fleet -benchtime 3x
func BenchmarkFleet(b *testing.B) {
	p := durable(b)
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("sidecars=%d", n), func(b *testing.B) {
			url := p.Database(b)
			s := open(b, Options{URL: url})
			joinFleet(b, url, n)
			before, peers, watched := traffic(b, url), 0, false
			cpu := serverCPU(b)
			b.ResetTimer()
			for range b.N {
				for i := range n / 5 {
					r, err := s.Heartbeat(b.Context(), backends.Heartbeat{Host: backends.Identity(n - i), Kind: backends.HeartbeatRenew, Name: fmt.Sprintf("host%d:1", n-i), Timeout: time.Hour})
					if err != nil || !r.Alive {
						b.Fatal(r.Alive, err)
					}
					peers, watched = peers+len(r.Peers), r.Watched
				}
				for i := range n * 5 / 4 {
					m := backends.Maintenance{Waiting: []string{"q"}, Limit: 10, Host: backends.Identity(i%n + 1)}
					m.Watched = watched && int(m.Host) > backends.Watchers
					if _, err := s.Maintain(b.Context(), m); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.StopTimer()
			b.ReportMetric(float64((serverCPU(b)-cpu).Milliseconds())/float64(b.N), "server-ms/op")
			if err := s.Close(); err != nil { // its sessions report what they read
				b.Fatal(err)
			}
			after := traffic(b, url)
			for i, unit := range []string{"rows/op", "pages/op"} {
				b.ReportMetric(float64(after[i]-before[i])/float64(b.N), unit)
			}
			b.ReportMetric(float64(peers)/float64(b.N), "peers/op")
		})
	}
}

// BenchmarkFleetJobs enqueues, claims and acks b.N jobs of one queue, one by one, each by the next of n sidecars.
//
//	go test ./backends/postgres -run '^$' -bench FleetJobs -benchtime 4000x
func BenchmarkFleetJobs(b *testing.B) {
	p := durable(b)
	for _, n := range []int{1, 10} {
		b.Run(fmt.Sprintf("sidecars=%d", n), func(b *testing.B) {
			url := p.Database(b)
			all := make([]*Store, n)
			for i := range all {
				all[i] = open(b, Options{URL: url, MaxConnections: minConnections})
				beat(b, all[i], backends.Identity(i+1))
			}
			before, rows := traffic(b, url), entries(b, url)
			b.ResetTimer()
			for i := range b.N {
				s := all[i%n]
				fill(b, s, 1)
				jobs := take(b, s, backends.Identity(i%n+1), 1, uint64(i+1))
				if _, err := s.Commit(b.Context(), backends.Batch{Writes: []backends.Write{backends.Ack{Leases: []backends.Lease{jobs[0].Lease()}}}}); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			for _, s := range all {
				if err := s.Close(); err != nil { // its sessions report what they read
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(traffic(b, url)[1]-before[1])/float64(b.N), "pages/job")
			b.ReportMetric(float64(entries(b, url)-rows)/float64(b.N), "entries/job")
		})
	}
}

// traffic returns how many rows and pages the sessions of a database have read that have ended.
func traffic(t testing.TB, url string) (n [2]int64) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	if err := c.QueryRow(t.Context(), "SELECT tup_returned + tup_fetched, blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()").Scan(&n[0], &n[1]); err != nil {
		t.Fatal(err)
	}
	return n
}
