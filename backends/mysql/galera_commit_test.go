package mysql

import (
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestGaleraErrorAfterCommit: another session locks the table from which a packet reads the number of its commit after COMMIT, until the
// server gives up. The error doesn't mean that the transaction was rolled back, and its jobs are not stored again.
func TestGaleraErrorAfterCommit(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	t.Parallel()
	g := startGalera(t)
	node := g.Nodes[0]
	name := node.Database(t)
	s := open(t, Options{URL: node.URL(name)})
	s.dialer.Config.Params["lock_wait_timeout"] = "1"
	s.pool.Retire()
	store := backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}
	write(t, s, store)
	row, table := connect(t, node, name), connect(t, node, name)
	runSQL(t, row, "BEGIN", "SELECT * FROM qsidecar_commits FOR UPDATE")
	answered := make(chan backends.WriteResult, 1)
	go func() { answered <- write(t, s, store) }()
	count := func(what string) int64 {
		return numberOf(t, node, name, "SELECT COUNT(*) FROM information_schema.processlist WHERE "+what)
	}
	testwait.Until(t, "the last statement before COMMIT waits", func() bool { return count("info LIKE 'INSERT INTO qsidecar_commits %'") == 1 })
	locked := make(chan bool, 1)
	go func() { runSQL(t, table, "LOCK TABLES qsidecar_commits WRITE"); locked <- true }()
	testwait.Until(t, "the lock on the table waits for COMMIT", func() bool { return count("info LIKE 'LOCK TABLES %'") == 1 })
	runSQL(t, row, "ROLLBACK")
	testwait.Receive(t, "the lock on the table", locked)
	reads := "info LIKE 'SELECT number FROM qsidecar_commits %'"
	testwait.Until(t, "the statement after COMMIT waits", func() bool { return count(reads) == 1 })
	testwait.Until(t, "the server gives up", func() bool { return count(reads+" AND info NOT LIKE '%FOR UPDATE%'") == 0 })
	runSQL(t, table, "UNLOCK TABLES")
	r := testwait.Receive(t, "the answer", answered)
	if n := numberOf(t, node, name, "SELECT COUNT(*) FROM qsidecar_jobs"); n != 2 || r.Err != nil || len(r.Stored) != 1 {
		t.Errorf("%d jobs are stored, want 2; the answer is %+v", n, r)
	}
}
