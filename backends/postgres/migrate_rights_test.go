package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestOutdatedWithoutDDL: a role without the right to create tables opens tables of an older version.
func TestOutdatedWithoutDDL(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := p.Database(t)
		role := "old_" + strings.ReplaceAll(strings.ToLower(t.Name()), "/", "_")
		must(t, url, "CREATE ROLE "+role+" LOGIN")
		defer must(t, url, "DROP OWNED BY "+role+"; DROP ROLE "+role)
		first(t, url, "qsidecar")
		must(t, url, "GRANT USAGE ON SCHEMA qsidecar TO "+role+"; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA qsidecar TO "+role)
		o := Options{URL: as(t, url, role), later: nextVersion(t)}
		_, err := Open(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("version %d", migrate.Base)) || !strings.Contains(err.Error(), fmt.Sprintf("migrate --print --from %d`", migrate.Base)) {
			t.Fatalf("%v, want it to say what to run", err)
		}
		t.Log(err)
		if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) || backends.Retryable(err) {
			t.Errorf("%v: a retry cannot help", err)
		}
		// After a migration by hand, or by another sidecar, the role can work.
		if strings.HasPrefix(p.Version, "13") {
			script(t, url, migrate.SQL("qsidecar", role, migrate.Base, o.later...))
		} else {
			open(t, Options{URL: url, later: o.later})
		}
		s := open(t, o)
		beat(t, s, 7)
		if jobs := take(t, s, 7, 9, 1); len(jobs) != 2 {
			t.Errorf("%d jobs, want 2", len(jobs))
		}
	})
}

// TestPrintedWithoutTheRole: the printed SQL creates nothing if the role doesn't exist, so that the same SQL can be run again.
func TestPrintedWithoutTheRole(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := p.Database(t)
		role := "late_" + strings.ReplaceAll(strings.ToLower(t.Name()), "/", "_")
		sql := migrate.SQL("qsidecar", role, 0)
		if err := testserver.RunScript(t.Context(), url, sql); err == nil || !strings.Contains(err.Error(), role) {
			t.Fatalf("%v, want it to name the role", err)
		}
		must(t, url, "CREATE ROLE "+role+" LOGIN")
		defer must(t, url, "DROP OWNED BY "+role+"; DROP ROLE "+role)
		if err := testserver.RunScript(t.Context(), url, sql); err != nil {
			t.Fatal(err)
		}
		open(t, Options{URL: as(t, url, role)})
	})
}
