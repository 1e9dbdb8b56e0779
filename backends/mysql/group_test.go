package mysql

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// groupStore is a Store whose address names all members of a replication group.
type groupStore struct {
	*testserver.Group
	s      *Store
	at     map[string]*testserver.MySQL // by address
	stored int64                        // jobs that were answered
}

// startGroup starts a replication group of three members, which ends with the test.
func startGroup(t *testing.T, multiPrimary bool, settings map[string]string) *testserver.Group {
	t.Helper()
	g, err := testserver.StartGroup(testwait.Context(t), 3, multiPrimary, testserver.Options{Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// wholeGroup starts a group in which all members accept writes, for tests in which none fails. The group never excludes a member that
// answers late on a busy machine. Such a member would refuse all writes.
func wholeGroup(t *testing.T, settings map[string]string) *testserver.Group {
	t.Helper()
	all := map[string]string{"group-replication-member-expel-timeout": "3600"}
	maps.Copy(all, settings)
	return startGroup(t, true, all)
}

// openGroup starts a group with one primary, and opens a Store. Its address names the primary last, so that read-only members are
// tried first.
func openGroup(t *testing.T, settings map[string]string) *groupStore {
	t.Helper()
	if testing.Short() {
		t.Skip("make check runs this")
	}
	g := &groupStore{Group: startGroup(t, false, settings), at: map[string]*testserver.MySQL{}}
	if err := g.Nodes[0].Exec(t.Context(), "CREATE DATABASE q"); err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for _, node := range g.Nodes {
		host := net.JoinHostPort(node.Host, node.Port)
		g.at[host] = node
		hosts = append([]string{host}, hosts...)
	}
	c := g.Nodes[0].Config("q")
	g.s = open(t, Options{URL: "mysql://" + url.UserPassword(c.User, c.Passwd).String() + "@" + strings.Join(hosts, ",") + "/q"})
	join(t, g.s, 1)
	g.store(t)
	if g.present(t) != g.Nodes[0] {
		t.Error("the Store is at a member that isn't the primary")
	}
	if text := g.s.Info().Cluster; text != "group replication, primary of 3, single-primary" {
		t.Errorf("the cluster is described as %q", text)
	}
	return g
}

// enqueue stores a job, once.
func (g *groupStore) enqueue(ctx context.Context) error {
	_, err := g.s.Commit(ctx, backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}})
	return err
}

// store enqueues a job until that is answered. The only permitted error is unavailable.
func (g *groupStore) store(t *testing.T) {
	t.Helper()
	job := backends.NewJob{Queue: "q", Key: fmt.Sprint(g.stored)}
	testwait.Until(t, "an enqueue succeeds", func() bool {
		_, err := g.s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{job}}}})
		if err != nil && !backends.Retryable(err) {
			t.Errorf("an enqueue: %v, want unavailable", err)
		}
		return err == nil
	})
	g.stored++
}

// present returns the member to which the connections lead.
func (g *groupStore) present(t *testing.T) *testserver.MySQL {
	t.Helper()
	c, err := g.s.pool.Take(t.Context(), &g.s.Meter)
	if err != nil {
		t.Fatal(err)
	}
	defer g.s.pool.Put(c)
	return g.at[c.Host]
}

// TestGroupHosts: the Store goes on at the new primary when the primary is killed at a COMMIT, and when it stops answering. Each
// job that was answered is there, once, and is acked once.
func TestGroupHosts(t *testing.T) {
	g := openGroup(t, nil)
	for _, harm := range []struct {
		name string
		do   func(primary *testserver.MySQL)
	}{
		{"killed after a COMMIT", func(primary *testserver.MySQL) { killAtCommit(t, g.s, primary, false) }},
		{"killed before a COMMIT", func(primary *testserver.MySQL) {
			killAtCommit(t, g.s, primary, true)
			switch err := g.enqueue(t.Context()); {
			case err == nil: // repeated at the new primary
				g.stored++
			case !backends.Retryable(err) || errors.Is(err, backends.ErrUnknownOutcome):
				t.Errorf("an enqueue whose primary was killed before the commit: %v, want none, or unavailable", err)
			}
		}},
		{"frozen", func(primary *testserver.MySQL) {
			if err := primary.Freeze(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		primary := g.present(t)
		harm.do(primary)
		g.store(t)
		if g.present(t) == primary {
			t.Errorf("the Store is at a primary that was %s", harm.name)
		}
		if harm.name == "frozen" {
			if err := primary.Thaw(); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.Revive(testwait.Context(t)); err != nil {
			t.Fatalf("after a primary was %s: %v", harm.name, err)
		}
	}
	jobs := claimJobs(t, g.s, 1, int(g.stored)+1, 1)
	if int64(len(jobs)) != g.stored {
		t.Errorf("%d jobs are there, and %d were answered", len(jobs), g.stored)
	}
	if lost := write(t, g.s, backends.Ack{Leases: leasesOf(jobs)}).Lost; len(lost) > 0 {
		t.Errorf("the ack lost %v", lost)
	}
	if left := numberOf(t, g.present(t), "q", "SELECT COUNT(*) FROM qsidecar_jobs"); left != 0 {
		t.Errorf("%d jobs are left, and all were acked", left)
	}
}

// TestGroupLosesPrimaryAtCommit: at a COMMIT the primary loses the other members. It reports an error and rolls back, while the
// others have received the transaction and commit it. A Store that took the report as it is would answer that the job isn't stored.
func TestGroupLosesPrimaryAtCommit(t *testing.T) {
	g := openGroup(t, map[string]string{"group-replication-unreachable-majority-timeout": "1"})
	ctx := testwait.Context(t)
	primary := g.Nodes[0]
	others := func(do func(*testserver.MySQL) error) {
		for _, node := range g.Nodes[1:] {
			if err := do(node); err != nil {
				t.Error(err)
			}
		}
	}
	hook := func(_ *session.Conn, before bool) {
		if before {
			g.s.fault.Store(nil)
			others((*testserver.MySQL).Freeze)
		}
	}
	g.s.fault.Store(&hook)
	answered := make(chan error, 1)
	go func() { answered <- g.enqueue(ctx) }()
	left := g.Left(ctx, primary)
	others((*testserver.MySQL).Thaw)
	second, err := g.Primary(ctx, primary)
	if err := errors.Join(left, err); err != nil {
		t.Fatal(err)
	}
	err = testwait.Receive(t, "the answer", answered)
	n := numberOf(t, second, "q", "SELECT COUNT(*) FROM qsidecar_jobs") - g.stored
	t.Logf("%d jobs are stored, the answer is %v", n, err)
	switch {
	case err == nil && n == 1, errors.Is(err, backends.ErrUnknownOutcome) && n <= 1, err != nil && backends.Retryable(err) && n == 0:
	default:
		t.Errorf("%d jobs are stored, and the answer is %v", n, err)
	}
}

// TestGroupConflicts claims and acks the same jobs through two members of a group in which all accept writes. Each claim and ack that was
// answered is in the table, no job is held twice, and no conflict is answered: a transaction that another member's change ended is run again.
func TestGroupConflicts(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	g := wholeGroup(t, nil)
	name := g.Nodes[0].Database(t)
	workConflicts(t, name, g.Nodes[:2], g.Nodes[2], 1_000, func() {})
}
