package mysql

import (
	"fmt"
	"testing"

	"github.com/qsidecar/qsidecar/backends/backendtest/fleet"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestFleet checks how sidecars share the work of watching each other.
func TestFleet(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) { fleet.Check(t, (&databases{t: t, m: m}).take) })
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
					q := core.DueQuery{Host: 1, Watched: watched, Waiting: []string{"queue1"}, Pieces: []core.Piece{{Segment: cursor.Whole}}}
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
