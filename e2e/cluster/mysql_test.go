package cluster

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/crash"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// mysqlSidecars starts sidecars whose addresses name all servers, each in another order. Their user isn't
// exempt from read_only. first is the server that accepts writes.
func mysqlSidecars(t *testing.T, first *testserver.MySQL, nodes []*testserver.MySQL) []*kit.Sidecar {
	t.Helper()
	if err := first.Exec(t.Context(), "CREATE DATABASE e2e", "CREATE USER app IDENTIFIED BY 'x'", "GRANT ALL ON e2e.* TO app"); err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for _, node := range nodes {
		hosts = append(hosts, net.JoinHostPort(node.Host, node.Port))
	}
	s := kit.NewSite(t)
	s.SidecarTimeout = 2 * time.Minute // longer than a failover takes on a busy machine; a sixth of it passes until a lost ack is noticed
	var sidecars []*kit.Sidecar
	for _, name := range []string{"a", "b"} {
		s.URL = "mysql://" + url.UserPassword("app", "x").String() + "@" + strings.Join(hosts, ",") + "/e2e"
		sidecars = append(sidecars, s.Start(name))
		hosts = append(hosts[1:], hosts[0])
	}
	return sidecars
}

// available fails the test if the servers could not be started. It returns false if they are unavailable.
func available(t *testing.T, what string, err error, stop func() error) bool {
	t.Helper()
	if errors.Is(err, testserver.ErrUnavailable) {
		kit.Figure(t, "NOT TESTED on %s, which could not be had", what)
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return true
}

// mysqlJobs returns the jobs that a server has.
func mysqlJobs(t testing.TB, m *testserver.MySQL) []string {
	return (&databases.MySQL{MySQL: m, T: t, Name: "e2e"}).Jobs(t)
}

// changer does the steps of the events of a MySQL cluster.
type changer struct{ t *testing.T }

// must runs a part of a step.
func (c changer) must(f func(ctx context.Context) error) {
	c.t.Helper()
	if err := f(testwait.Context(c.t)); err != nil {
		c.t.Fatal(err)
	}
}

// repair is a step that ends an event.
func (c changer) repair(f func(ctx context.Context) error) step {
	return func(*crash.Run) { c.must(f) }
}

// serves records that an event lasted from an instant on, and that a server accepts writes now.
func (c changer) serves(r *crash.Run, name string, from int64, lossy bool) {
	r.Serving(name)
	who := crash.Connections
	if lossy {
		who = crash.Failover
	}
	if err := r.Hist.Add(crash.Record{At: from, Until: kit.Monotonic(), Who: who, What: crash.Killed}); err != nil {
		c.t.Fatal(err)
	}
}
