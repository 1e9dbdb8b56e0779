package postgres_test

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/postgres"
	"github.com/qsidecar/qsidecar/backends/postgres/diagnose"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestExamineCluster examines a primary and its standby in several states.
func TestExamineCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this: each case starts three servers")
	}
	t.Setenv(testserver.EnvURL, "") // servers that can be damaged
	// Servers of one version start as copies of one cluster.
	another := map[string]string{testserver.OldestPostgres: testserver.NewestPostgres, testserver.NewestPostgres: testserver.OldestPostgres}
	for _, version := range testserver.Versions() {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			primary, other := start(t, version), start(t, another[version])
			standby, err := primary.Standby(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := standby.Stop(); err != nil {
					t.Error(err)
				}
			})
			open(t, postgres.Options{URL: primary.Admin()})
			both := address(t, primary, standby)
			// Until the standby has connected again, the primary doesn't list it.
			until(t, both, diagnose.DefaultThresholds(), "the standby is connected", want{backends.SeverityInfo, "cluster", "primary of 2, timeline 1, asynchronous", ""},
				want{backends.SeverityWarning, "cluster", "no commit waits for a standby", "set synchronous_standby_names"},
				want{backends.SeverityInfo, "cluster", "is a standby, timeline 1", ""}, want{backends.SeverityInfo, "cluster", "the clocks of the url's hosts are at most", ""})
			strict := diagnose.DefaultThresholds()
			strict.HostClocks = -1e9
			until(t, both, strict, "the clocks are apart", want{backends.SeverityError, "cluster", "after a change of the host, leases end too early", "NTP"})
			set := func(names string) {
				if err := primary.Exec(t.Context(), "ALTER SYSTEM SET synchronous_standby_names = "+names, "SELECT pg_reload_conf()"); err != nil {
					t.Fatal(err)
				}
			}
			set("'*'")
			until(t, both, diagnose.DefaultThresholds(), "commits wait for the standby", want{backends.SeverityInfo, "cluster", "a failover to it loses nothing", ""})
			set("missing")
			until(t, both, diagnose.DefaultThresholds(), "nothing can commit", want{backends.SeverityError, "cluster", "every commit waits", "start a standby"})
			set("''")
			until(t, both, diagnose.DefaultThresholds(), "no commit waits", want{backends.SeverityWarning, "cluster", "no commit waits for a standby", ""})
			until(t, address(t, primary, other), diagnose.DefaultThresholds(), "the hosts are of different clusters",
				want{backends.SeverityError, "cluster", "are of different clusters", "one cluster only"}, want{backends.SeverityError, "cluster", "all accept writes", "make one of them"})
			if err := primary.Halt(); err != nil {
				t.Fatal(err)
			}
			if err := standby.Promote(t.Context()); err != nil {
				t.Fatal(err)
			}
			until(t, both, diagnose.DefaultThresholds(), "the old primary is gone", want{backends.SeverityWarning, "cluster", "of the url isn't reachable", "start it"},
				want{backends.SeverityInfo, "cluster", "this server: single server, timeline 2", ""})
			if err := primary.Restart(testwait.Context(t)); err != nil {
				t.Fatal(err)
			}
			until(t, both, diagnose.DefaultThresholds(), "the old primary is back", want{backends.SeverityError, "cluster", "is an old primary, which still accepts writes", "stop it"})
		})
	}
}

func start(t *testing.T, version string) *testserver.Postgres {
	t.Helper()
	p, err := testserver.StartPostgres(t.Context(), version, testserver.Options{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// address returns an address that names servers in this order.
func address(t *testing.T, all ...*testserver.Postgres) string {
	t.Helper()
	var hosts []string
	for _, p := range all {
		u, err := url.Parse(p.Admin())
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, u.Query().Get("host"))
	}
	return "postgres://postgres@/postgres?host=" + strings.Join(hosts, ",")
}

// until examines a cluster until all findings of the list appear, and then expects no further error.
func until(t *testing.T, url string, th diagnose.Thresholds, what string, wanted ...want) {
	t.Helper()
	var found []backends.Finding
	testwait.Until(t, what, func() bool {
		s, err := postgres.Open(t.Context(), postgres.Options{URL: url, ReadOnly: true})
		if err == nil {
			found, err = examine(t, s, nil, th)
			err = errors.Join(err, s.Close())
		}
		if err != nil {
			t.Logf("%s: %v", what, err)
			return false
		}
		return !slices.ContainsFunc(wanted, func(w want) bool { return !slices.ContainsFunc(found, w.is) })
	})
	t.Logf("%s:\n%s", what, listedOf(found, "cluster"))
	has(t, found, wanted...)
}

func listedOf(found []backends.Finding, topic string) string {
	var of []backends.Finding
	for _, f := range found {
		if f.Topic == topic {
			of = append(of, f)
		}
	}
	return listed(of)
}

// TestExamineProducts: managed products are named. A database with a setting of that name stands in for the product, which the
// tests can't run.
func TestExamineProducts(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		for sql, name := range map[string]string{
			"rds.superuser_variables": "Amazon RDS", "cloudsql.supported_extensions": "Google Cloud SQL", "azure.extensions": "Azure Database for PostgreSQL",
		} {
			url := filled(t, p)
			must(t, url, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET `+sql+` = ''x''', current_database()); END $$`)
			has(t, examined(t, postgres.Options{URL: url}, diagnose.DefaultThresholds()), want{backends.SeverityInfo, "cluster", "the server is one of " + name, ""})
		}
		url := filled(t, p)
		must(t, url, "CREATE FUNCTION aurora_version() RETURNS text LANGUAGE sql AS 'SELECT ''16.4.1'''")
		has(t, examined(t, postgres.Options{URL: url}, diagnose.DefaultThresholds()), want{backends.SeverityInfo, "cluster", "the server is one of Amazon Aurora", ""})
	})
}
