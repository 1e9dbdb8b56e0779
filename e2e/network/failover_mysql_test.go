package network

import (
	"net"
	"net/url"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestMySQLFailover checks a primary that dies, or becomes read-only, during work, and a replica
// that is promoted later. The sidecars reach the servers at addresses that move.
func TestMySQLFailover(t *testing.T) {
	databases.OwnMySQL(t)
	for _, kind := range kit.SkipLockedKinds {
		for what, planned := range map[string]bool{"the primary dies": false, "the primary becomes read-only": true} {
			t.Run(string(kind)+"/"+what, func(t *testing.T) { mysqlFailover(t, kind, planned) })
		}
	}
}

func listens(m *testserver.MySQL) string { return net.JoinHostPort(m.Host, m.Port) }

func mysqlFailover(t *testing.T, kind testserver.Kind, planned bool) {
	settings := testserver.SourceSettings()
	m, err := testserver.StartMySQL(t.Context(), kind, testserver.Options{Durable: true, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	stops := func(m *testserver.MySQL) {
		t.Cleanup(func() {
			if err := m.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	stops(m)
	replica, err := m.Replica(testwait.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	stops(replica)
	// A user without an exemption from read_only, as applications should use.
	if err := m.Exec(t.Context(), "CREATE DATABASE e2e", "CREATE USER app IDENTIFIED BY 'x'", "GRANT ALL ON e2e.* TO app"); err != nil {
		t.Fatal(err)
	}
	f := &failover{T: t, site: kit.NewSite(t)}
	soon, late := newSwallower(t, "tcp", listens(m)), newSwallower(t, "tcp", listens(m))
	at := func(r *blackHole) string {
		u := url.URL{Scheme: "mysql", User: url.UserPassword("app", "x"), Host: r.ln.Addr().String(), Path: "/e2e"}
		return u.String()
	}
	f.start(map[string]string{"soon": at(soon), "late": at(late)})
	if planned {
		if err := m.Exec(t.Context(), "SET GLOBAL read_only = ON"); err != nil { // sessions stay open
			t.Fatal(err)
		}
	}
	if err := replica.CaughtUp(testwait.Context(t), m); err != nil {
		t.Fatal(err)
	}
	if !planned {
		if err := m.Kill9(); err != nil {
			t.Fatal(err)
		}
	}
	soon.moveTo("tcp", listens(replica))
	f.settle()
	f.site.URL = at(soon)
	f.begin("this server is read-only, as replicas are")
	if err := replica.Promote(testwait.Context(t)); err != nil {
		t.Fatal(err)
	}
	late.moveTo("tcp", listens(replica))
	f.check(func() int {
		return len((&databases.MySQL{MySQL: replica, T: t, Name: "e2e"}).Jobs(t))
	})
}
