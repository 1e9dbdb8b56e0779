package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/crash"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// rolling restarts the servers of a cluster one after another under load, as their upgrade does.
type rolling struct {
	url     string // names all servers
	restart []func() error
	left    func(t testing.TB) []string
}

// run runs two sidecars with a few workers and producers while each server is restarted once. Between two
// restarts some jobs are done. The restart of a server harms nothing but connections.
func (c *rolling) run(t *testing.T) {
	t.Helper()
	s := kit.NewSite(t)
	s.SidecarTimeout = 5 * time.Minute // longer than a restart takes on a busy machine
	s.URL = c.url
	next := 0
	restart := func(r *crash.Run) {
		if next == len(c.restart) {
			return
		}
		before := len(c.left(t))
		r.Killing(crash.Connections, func() {
			if err := c.restart[next](); err != nil {
				t.Fatalf("restart %d: %v", next+1, err)
			}
		})
		next++
		kit.Figure(t, "restart %d of a server: %d jobs in the table before, %d after", next, before, len(c.left(t)))
	}
	jobs := kit.Size(20_000)
	v := crash.Plan{
		Queue: "crash", Jobs: jobs, Workers: 4, Sidecars: []*kit.Sidecar{s.Start("a"), s.Start("b")},
		Killers: []crash.Killer{{Every: 100, Kill: crash.KillWorker}, {Every: jobs/10 + 1, Kill: restart}},
		RepairAll: func(r *crash.Run) { // if the workers were faster than the restarts
			for next < len(c.restart) {
				restart(r)
			}
		},
		LockWaits: true,
		Left:      c.left,
	}.Run(t)
	if len(v.Problems) > 0 {
		t.Errorf("%d problems:\n%s", len(v.Problems), v.Summary(20))
	}
}

// stopAtEnd stops a cluster when the test ends.
func stopAtEnd(t *testing.T, cluster interface{ Stop() error }) {
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// mysqlURL returns a URL that names all servers, and creates the database at the first one.
func mysqlURL(t *testing.T, nodes []*testserver.MySQL) string {
	t.Helper()
	if err := nodes[0].Exec(t.Context(), "CREATE DATABASE e2e"); err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(nodes[0].URL("e2e"))
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes[1:] {
		address.Host += "," + node.Host + ":" + node.Port
	}
	return address.String()
}

// jobsAt returns the ids of all jobs that a server has.
func jobsAt(t testing.TB, node *testserver.MySQL) []string {
	return (&databases.MySQL{MySQL: node, T: t, Name: "e2e"}).Jobs(t)
}

func TestRollingGalera(t *testing.T) {
	databases.OwnMySQL(t)
	g, err := testserver.StartGalera(testwait.Context(t), 3, testserver.Options{Durable: true, Settings: map[string]string{"wsrep-sync-wait": "1"}})
	if errors.Is(err, testserver.ErrUnavailable) {
		kit.Figure(t, "NOT TESTED on Galera, which could not be had")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, g)
	c := rolling{url: mysqlURL(t, g.Nodes), left: func(t testing.TB) []string { return jobsAt(t, g.Nodes[0]) }}
	for _, node := range g.Nodes {
		c.restart = append(c.restart, func() error {
			_, err := g.Revive(testwait.Context(t)) // also one that crashed by itself, as MariaDB sometimes does when transactions conflict
			if err := errors.Join(err, node.Halt()); err != nil {
				return err
			}
			_, err = g.Revive(testwait.Context(t))
			return err
		})
	}
	c.run(t)
}

// TestRollingGroup also moves the primary, because its restart does.
func TestRollingGroup(t *testing.T) {
	databases.OwnMySQL(t)
	g, err := testserver.StartGroup(testwait.Context(t), 3, false, testserver.Options{
		Durable: true, Settings: map[string]string{"group-replication-consistency": "BEFORE_ON_PRIMARY_FAILOVER"},
	})
	if errors.Is(err, testserver.ErrUnavailable) {
		kit.Figure(t, "NOT TESTED on MySQL, which could not be had")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, g)
	c := rolling{url: mysqlURL(t, g.Nodes), left: func(t testing.TB) []string {
		primary, err := g.Primary(testwait.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		return jobsAt(t, primary)
	}}
	for _, node := range g.Nodes {
		c.restart = append(c.restart, func() error {
			// A member that doesn't leave the group first can take a minute to shut down.
			return errors.Join(node.Exec(testwait.Context(t), "STOP GROUP_REPLICATION"), node.Halt(), node.Restart(testwait.Context(t)), g.Whole(testwait.Context(t)))
		})
	}
	c.run(t)
}

// TestRollingPostgres upgrades the primary by a switchover: it is shut down, which sends all to the standby,
// the standby is promoted, and the old primary starts as its standby.
func TestRollingPostgres(t *testing.T) {
	primary, err := testserver.StartPostgres(t.Context(), testserver.NewestPostgres, testserver.Options{Own: true, Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, primary)
	if err := primary.Exec(t.Context(), "CREATE DATABASE e2e TEMPLATE template0"); err != nil {
		t.Fatal(err)
	}
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, standby)
	switchover := func() error {
		ctx := testwait.Context(t)
		if err := errors.Join(primary.Halt(), standby.Exec(ctx, "SELECT pg_promote(true, 3600)")); err != nil {
			return err
		}
		primary, standby = standby, primary
		data := filepath.Join(socketsOf(t, standby), "data")
		conf, err := os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(conf, "primary_conninfo = 'host=%s user=postgres'\n", socketsOf(t, primary))
		if err := errors.Join(err, conf.Close(), os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644), standby.Restart(ctx)); err != nil {
			return err
		}
		return testwait.Poll(ctx, func(ctx context.Context) error {
			return primary.Exec(ctx, "DO $$BEGIN ASSERT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming'), 'no standby'; END$$")
		})
	}
	hosts := []string{socketsOf(t, primary), socketsOf(t, standby)}
	c := rolling{
		url:     "postgres://postgres@/e2e?host=" + strings.Join(hosts, ","),
		restart: []func() error{switchover, switchover},
		left: func(t testing.TB) []string {
			p := databases.Postgres{Postgres: primary, T: t, URL: "postgres://postgres@/e2e?host=" + socketsOf(t, primary)}
			return p.Jobs(t)
		},
	}
	c.run(t)
}

// socketsOf returns the directory of a server, in which its Unix socket is.
func socketsOf(t testing.TB, p *testserver.Postgres) string {
	u, err := url.Parse(p.Admin())
	if err != nil {
		t.Fatal(err)
	}
	return u.Query().Get("host")
}
