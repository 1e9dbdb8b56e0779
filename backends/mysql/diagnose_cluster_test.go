package mysql_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/checks"
	"github.com/qsidecar/qsidecar/backends/mysql"
	"github.com/qsidecar/qsidecar/backends/mysql/diagnose"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestExamineReplica examines a source and its replica, which then accepts writes too.
func TestExamineReplica(t *testing.T) {
	mysql.OwnServers(t, func(t *testing.T, kind testserver.Kind) {
		source := started(t, func(ctx context.Context) (*testserver.MySQL, error) {
			return testserver.StartMySQL(ctx, kind, testserver.Options{Durable: true, Settings: testserver.SourceSettings()})
		})
		replica := started(t, source.Replica)
		run(t, source, "CREATE DATABASE q")
		both := address(source, replica)
		examineUntil(t, both, checks.HostClocks, "the replica is connected", expected{backends.SeverityWarning, "no commit waits for a replica"},
			expected{backends.SeverityInfo, "this server: source of 1, asynchronous"}, expected{backends.SeverityInfo, "replica of " + source.Host + ":" + source.Port + ", read-only"})
		examineUntil(t, both, -time.Second, "the clocks are apart", expected{backends.SeverityError, "leases end too early"})
		examineUntil(t, address(replica, source), checks.HostClocks, "the replica is examined", expected{backends.SeverityInfo, "it replicates from"})
		run(t, replica, "SET GLOBAL read_only = OFF")
		examineUntil(t, address(replica, source), checks.HostClocks, "both accept writes",
			expected{backends.SeverityError, "accepts writes and is a replica of"}, expected{backends.SeverityError, "accept writes without Galera or a multi-primary group"})
	})
}

// TestExamineGalera examines a cluster of three nodes, of which one stops.
func TestExamineGalera(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	g, err := testserver.StartGalera(testwait.Context(t), 3, testserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	run(t, g.Nodes[0], "CREATE DATABASE q")
	all := address(g.Nodes...)
	examineUntil(t, all, checks.HostClocks, "the cluster is whole", expected{backends.SeverityInfo, "this server: Galera node of 3, Synced"},
		expected{backends.SeverityInfo, "the failure of a node loses nothing"}, expected{backends.SeverityInfo, "the sidecar's sessions set 1"})
	if err := g.Nodes[2].Kill9(); err != nil {
		t.Fatal(err)
	}
	examineUntil(t, all, checks.HostClocks, "a node is gone", expected{backends.SeverityWarning, "the cluster has 2 nodes"}, expected{backends.SeverityWarning, "isn't reachable"})
}

// TestExamineGroup examines a replication group with one primary, and one in which all members accept writes.
func TestExamineGroup(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	for name, multiPrimary := range map[string]bool{"single-primary": false, "multi-primary": true} {
		t.Run(name, func(t *testing.T) {
			g, err := testserver.StartGroup(testwait.Context(t), 3, multiPrimary, testserver.Options{Settings: map[string]string{
				"group-replication-member-expel-timeout": "3600", // no member fails here, however busy the machine is
			}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := g.Stop(); err != nil {
					t.Error(err)
				}
			})
			run(t, g.Nodes[0], "CREATE DATABASE q", "SET GLOBAL group_replication_consistency = 'EVENTUAL'")
			all := address(g.Nodes...)
			severity, text := backends.SeverityWarning, "group_replication_consistency is EVENTUAL: after a failover"
			if multiPrimary {
				severity, text = backends.SeverityInfo, "several members accept writes; group_replication_consistency is EVENTUAL, and the sidecar's sessions set BEFORE"
			}
			examineUntil(t, all, checks.HostClocks, "reads can be stale", expected{severity, text}, expected{backends.SeverityInfo, "group replication, primary of 3, " + name},
				expected{backends.SeverityInfo, "the failure of a member loses nothing"})
			run(t, g.Nodes[0], "SET GLOBAL group_replication_consistency = 'BEFORE'")
			examineUntil(t, all, checks.HostClocks, "reads are fresh", expected{backends.SeverityInfo, "group_replication_consistency is BEFORE"})
		})
	}
}

func started(t *testing.T, start func(context.Context) (*testserver.MySQL, error)) *testserver.MySQL {
	t.Helper()
	m, err := start(testwait.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Stop(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func run(t *testing.T, m *testserver.MySQL, statements ...string) {
	t.Helper()
	if err := m.Exec(t.Context(), statements...); err != nil {
		t.Fatal(err)
	}
}

// address returns an address that names servers in this order.
func address(all ...*testserver.MySQL) string {
	var hosts []string
	for _, m := range all {
		hosts = append(hosts, net.JoinHostPort(m.Host, m.Port))
	}
	c := all[0].Config("q")
	return "mysql://" + url.UserPassword(c.User, c.Passwd).String() + "@" + strings.Join(hosts, ",") + "/q"
}

// expected is a finding about the cluster whose text contains these words.
type expected struct {
	severity backends.Severity
	text     string
}

func (e expected) in(found []backends.Finding) bool {
	for _, f := range found {
		if f.Topic == "cluster" && f.Severity == e.severity && strings.Contains(f.Text, e.text) {
			return true
		}
	}
	return false
}

// examineUntil examines a cluster until all of these findings appear, and no further error.
func examineUntil(t *testing.T, url string, hostClocks time.Duration, what string, all ...expected) {
	t.Helper()
	var found []backends.Finding
	defer func() {
		for _, f := range found {
			if f.Topic == "cluster" {
				t.Logf("%s: %v: %s → %s", what, f.Severity, f.Text, f.Fix)
			}
			if f.Topic == "cluster" && f.Severity != backends.SeverityInfo && f.Fix == "" {
				t.Errorf("%+v lacks a fix", f)
			}
		}
	}()
	testwait.Until(t, what, func() bool {
		s, err := mysql.Open(t.Context(), mysql.Options{URL: url, ReadOnly: true})
		if err == nil {
			x := diagnose.New(s)
			x.HostClocks = hostClocks
			found, err = x.Examine(t.Context(), nil)
			err = errors.Join(err, s.Close())
		}
		if err != nil {
			t.Logf("%s: %v", what, err)
		}
		return err == nil && fit(found, all)
	})
}

// fit reports whether the findings include all that are expected, and have no further error.
func fit(found []backends.Finding, all []expected) bool {
	errs := 0
	for _, f := range found {
		if f.Topic == "cluster" && f.Severity == backends.SeverityError {
			errs++
		}
	}
	for _, w := range all {
		if !w.in(found) {
			return false
		}
		if w.severity == backends.SeverityError {
			errs--
		}
	}
	return errs == 0
}
