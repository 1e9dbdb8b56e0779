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

// BenchmarkFleet does what n sidecars do that share a queue (see fleet.Bench), idle and with a thousand jobs in a second.
// Each sidecar has its own Store, which opens connections when it needs them. They don't notify each other, and don't read
// the server's role, which a Store does every ten seconds by the machine's clock.
//
// b.N is the number of heartbeats of each sidecar, after a first one that isn't measured. The seconds are those of the
// virtual clock. server-ms is the server's CPU time for the whole fleet. A thousand sidecars need 2,000 connections and 8 GB.
//
//	go test ./backends/postgres -run '^$' -bench Fleet -benchtime 3x -timeout 2h
func BenchmarkFleet(b *testing.B) {
	p := serve(b, testserver.Options{Durable: true, Settings: map[string]string{"max_connections": "2500"}})
	for _, jobs := range []int{0, 1000} {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("jobs=%d/sidecars=%d", jobs, n), func(b *testing.B) { benchFleet(b, p.Database(b), n, jobs) })
		}
	}
}

func benchFleet(b *testing.B, url string, n, jobs int) {
	tap := newTap(b, url)
	var stores []*Store
	f := fleet.NewBench(b, n, jobs, func(clock func() time.Time) backends.Backend {
		s := open(b, Options{URL: tap.url, MaxConnections: minConnections})
		s.LocalTime = clock
		stores = append(stores, s)
		s.cluster.Close()
		return s
	})
	read := func() [3]int64 {
		for _, s := range stores {
			flush(b, s)
		}
		rows := traffic(b, url)
		return [3]int64{entries(b, url), rows[0], rows[1]}
	}
	f.Round()
	before := read()
	cpu, cost, sent, received := serverCPU(b), tap.cost(), tap.sent.Load(), tap.received.Load()
	b.ResetTimer()
	for range b.N {
		f.Round()
	}
	b.StopTimer()
	seconds := float64(b.N) * fleet.HeartbeatEvery.Seconds()
	report := func(unit string, k int64) { b.ReportMetric(float64(k)/seconds/float64(n), unit+"/s/sidecar") }
	b.ReportMetric(float64((serverCPU(b)-cpu).Milliseconds())/seconds, "server-ms/s")
	report("trips", int64(tap.cost()[0]-cost[0]))
	report("statements", int64(tap.cost()[1]-cost[1]))
	report("bytes-sent", tap.sent.Load()-sent)
	report("bytes-received", tap.received.Load()-received)
	after := read()
	for i, unit := range []string{"entries", "rows", "pages"} {
		report(unit, after[i]-before[i])
	}
}

// traffic returns how many rows and pages the sessions of a database have read that have ended, or for which flush was called.
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
