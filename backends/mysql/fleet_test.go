package mysql

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest/fleet"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestFleet checks how sidecars share the work of watching each other.
func TestFleet(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) { fleet.Check(t, (&databases{t: t, m: m}).take) })
}

// BenchmarkFleet does what n sidecars do that share a queue (see fleet.Bench), idle and with a thousand jobs in a second.
// Each sidecar has its own Store, which opens connections when it needs them. They don't read the server's role, which a
// Store does every ten seconds by the machine's clock.
//
// b.N is the number of heartbeats of each sidecar, after a first one that isn't measured. The seconds are those of the
// virtual clock. server-ms is the server's CPU time for the whole fleet. Packets are the client's commands, with one or
// more statements each. Rows are the server's Handler_read counters. A thousand sidecars need up to 3,000 connections, because
// the proofs of claims (see package claim) run beside commits. If a round takes long, connections are unused for more
// than 14 s of real time and opened again.
//
//	go test ./backends/mysql -run '^$' -bench Fleet -benchtime 3x -timeout 4h
func BenchmarkFleet(b *testing.B) {
	durably(b, func(b *testing.B, m *testserver.MySQL) {
		must(b, m, "", "SET GLOBAL max_connections = 3500")
		for _, jobs := range []int{0, 1000} {
			for _, n := range []int{10, 100, 1000} {
				b.Run(fmt.Sprintf("jobs=%d/sidecars=%d", jobs, n), func(b *testing.B) { benchFleet(b, m, n, jobs) })
			}
		}
	})
}

func benchFleet(b *testing.B, m *testserver.MySQL, n, jobs int) {
	url, sent := m.URL(m.Database(b)), &counted{}
	f := fleet.NewBench(b, n, jobs, func(clock func() time.Time) backends.Backend {
		s := open(b, Options{URL: url, MaxConnections: minConnections, wrap: func(c net.Conn) net.Conn { return &counter{Conn: c, to: sent} }})
		s.LocalTime = clock
		s.cluster.Close()
		return s
	})
	f.Round()
	work, cost, cpu := counters(b, m), sent.cost(), serverCPU(b, m)
	b.ResetTimer()
	for range b.N {
		f.Round()
	}
	b.StopTimer()
	after := work()
	seconds := float64(b.N) * fleet.HeartbeatEvery.Seconds()
	report := func(unit string, k int64) { b.ReportMetric(float64(k)/seconds/float64(n), unit+"/s/sidecar") }
	b.ReportMetric(float64((serverCPU(b, m)-cpu).Milliseconds())/seconds, "server-ms/s")
	report("packets", int64(sent.cost()[0]-cost[0]))
	report("statements", int64(sent.cost()[1]-cost[1]))
	for i, unit := range []string{"rows", "bytes-sent", "bytes-received"} {
		report(unit, after[i])
	}
}

// TestWatchedSidecarCostsTheSame checks that what a sidecar reads in a heartbeat and in maintenance doesn't grow with
// the number of sidecars and queues, if others watch.
func TestWatchedSidecarCostsTheSame(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		read := func(n int) (heartbeat, look int64) {
			name := m.Database(t)
			s := open(t, Options{URL: m.URL(name)})
			must(t, m, name,
				fmt.Sprintf(`INSERT INTO qsidecar_sidecars (sidecar, name, heartbeats, timeout_ms, expires_at)
					SELECT 100 * a.i + 10 * b.i + c.i + 1, 'host:1', 1, 3600000, UTC_TIMESTAMP(6) + INTERVAL 59 MINUTE FROM %[1]s a, %[1]s b, %[1]s c WHERE 100 * a.i + 10 * b.i + c.i < %[2]d`, digits, n),
				`INSERT INTO qsidecar_jobs (queue, state, payload, owner, token_sidecar, token_number, claimed_at)
					SELECT 'busy', 'claimed', '', sidecar, sidecar, 1, UTC_TIMESTAMP() FROM qsidecar_sidecars`,
				`INSERT INTO qsidecar_queues (queue) SELECT CONCAT('queue', sidecar) FROM qsidecar_sidecars`)
			self := int64(n)
			heartbeat = reads(t, s, func(tx *tx) {
				tx.Add(s.sql.lastWatcher, self)
				tx.Ints(new([]int64), s.sql.peers, 0, self)
			})
			due := func(watched bool) int64 {
				return reads(t, s, func(tx *tx) {
					q := core.DueQuery{Sidecar: 1, Watched: watched, Waiting: []string{"queue1"}, Pieces: []core.Piece{{Segment: cursor.Whole}}}
					tx.queryDue(q, nil, newDueRows(q))
				})
			}
			t.Logf("with %d sidecars and queues, a watcher's maintenance reads %d rows", n, due(false))
			return heartbeat, due(true)
		}
		heartbeat, look := read(10)
		heartbeats, looks := read(1000)
		t.Logf("rows read with 10 and with 1,000 sidecars and queues: %d and %d by a heartbeat, %d and %d by maintenance", heartbeat, heartbeats, look, looks)
		if heartbeats > heartbeat+10 || looks > look+10 {
			t.Error("they grow")
		}
	})
}

const digits = "(SELECT 0 AS i UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
