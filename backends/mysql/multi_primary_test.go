package mysql

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestMultiPrimary runs on a replication group in which all members accept writes.
func TestMultiPrimary(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	ctx := testwait.Context(t)
	g := wholeGroup(t, map[string]string{"replica-parallel-workers": "1"})
	if err := g.Nodes[0].Exec(ctx, "CREATE DATABASE q", "CREATE TABLE q.other (id INT PRIMARY KEY)",
		"CREATE USER app IDENTIFIED BY 'x'", "GRANT SELECT, INSERT, UPDATE, DELETE ON q.* TO app"); err != nil {
		t.Fatal(err)
	}
	t.Run("conflicts", func(t *testing.T) {
		workConflicts(t, "q", g.Nodes[:2], g.Nodes[2], 400, func() {})
		t.Logf("%d conflicts", numberOf(t, g.Nodes[0], "", "SELECT MAX(count_conflicts_detected) FROM performance_schema.replication_group_member_stats"))
	})
	t.Run("lag", func(t *testing.T) { ackAtLateMember(t, g) })
	t.Run("nothing written", func(t *testing.T) { loseWithoutWrites(t, g) })
}

// loseWithoutWrites changes a job at one member while a transaction at another member has its row locked and wrote nothing, because
// the lease is over. The transaction's COMMIT fails, and must be tried again as often as after a write.
func loseWithoutWrites(t *testing.T, g *testserver.Group) {
	s := open(t, Options{URL: g.Nodes[0].URL("q")})
	join(t, s, 2)
	id := write(t, s, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "other"}}}).Stored[0].ID
	tries := 0
	hook := func(_ *session.Conn, before bool) {
		if !before {
			return
		}
		if tries++; tries > core.MaxTries+2 {
			return
		}
		if err := g.Nodes[1].Exec(testwait.Context(t), fmt.Sprint("UPDATE q.qsidecar_jobs SET priority = ", tries, " WHERE id = ", id)); err != nil {
			t.Error(err)
		}
		testwait.Until(t, "the change is applied", func() bool {
			return numberOf(t, g.Nodes[0], "q", fmt.Sprint("SELECT priority FROM qsidecar_jobs WHERE id = ", id)) == int64(tries)
		})
	}
	s.fault.Store(&hook)
	defer s.fault.Store(nil)
	r := write(t, s, backends.Nack{Leases: []backends.Lease{{Job: id, Token: backends.Token{Sidecar: 2, Number: 1}}}})
	if len(r.Lost) != 1 || tries != core.MaxTries+3 {
		t.Errorf("after %d tries the nack of a lease that is over is answered with %+v", tries, r)
	}
}

// ackAtLateMember claims a job at one member, and acks it at another one that has not applied the claim yet.
// The ack must wait for that. A user without special rights does it.
func ackAtLateMember(t *testing.T, g *testserver.Group) {
	ctx := testwait.Context(t)
	var stores []*Store
	for _, node := range g.Nodes[:2] {
		u := strings.Replace(node.URL("q"), url.UserPassword(node.User, node.Password).String(), "app:x", 1)
		stores = append(stores, open(t, Options{URL: u}))
	}
	join(t, stores[0], 1)
	if err := enqueue(t, stores[0]); err != nil {
		t.Fatal(err)
	}
	late := g.Nodes[1]
	testwait.Until(t, "the other member has the job and the sidecar", func() bool {
		return numberOf(t, late, "q", "SELECT COUNT(*) FROM qsidecar_jobs JOIN qsidecar_sidecars ON sidecar = 1") == 1
	})
	// The member applies changes one after the other. So a change of a locked table stops all of them.
	c := connect(t, late, "q")
	runSQL(t, c, "LOCK TABLES other READ")
	if err := g.Nodes[0].Exec(ctx, "INSERT INTO q.other VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	jobs := claimJobs(t, stores[0], 1, 1, 1)
	if len(jobs) != 1 {
		t.Fatalf("claimed %v", jobs)
	}
	answered := make(chan error, 1)
	go func() {
		r, err := stores[1].Commit(ctx, backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(jobs)}}})
		if err == nil && len(r.Writes[0].Lost) > 0 {
			err = fmt.Errorf("the ack lost %v", r.Writes[0].Lost)
		}
		answered <- err
	}()
	testwait.Until(t, "the ack is answered, or waits at the server", func() bool {
		return len(answered) > 0 || numberOf(t, late, "q", "SELECT COUNT(*) FROM performance_schema.processlist WHERE user = 'app' AND command <> 'Sleep'") > 0
	})
	runSQL(t, c, "UNLOCK TABLES")
	if err := testwait.Receive(t, "the answer", answered); err != nil {
		t.Error(err)
	}
}
