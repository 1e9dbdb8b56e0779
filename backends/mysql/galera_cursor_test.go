package mysql

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestGaleraLateInsert inserts a job at another node in a transaction that stays open while claims pass its position. This node
// can't see the row or its lock until the transaction commits. Claims find the job then, although the backlog behind it never ends.
// The clock of the other node is behind.
func TestGaleraLateInsert(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	t.Parallel()
	g := startGalera(t)
	name := g.Nodes[0].Database(t)
	s := open(t, Options{URL: g.Nodes[0].URL(name)})
	join(t, s, 1)
	if err := g.SetClock(testwait.Context(t), 1, -2*time.Second); err != nil {
		t.Fatal(err)
	}
	fillBy(t, s, 600, 300)
	other := connect(t, g.Nodes[1], name)
	runSQL(t, other, "SET SESSION wsrep_sync_wait = 1", "START TRANSACTION", "INSERT INTO qsidecar_jobs (queue, payload) VALUES ('q', 'late')")
	claimJobs(t, s, 1, 300, 1)
	proveSomething(t, s)
	runSQL(t, other, "COMMIT")
	claimUntil(t, s, isLate)
}
