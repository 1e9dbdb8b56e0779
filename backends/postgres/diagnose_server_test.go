package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/postgres"
	"github.com/qsidecar/qsidecar/backends/postgres/diagnose"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestExamineSettings changes, as the owner of the database, settings that disturb a sidecar.
func TestExamineSettings(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		c, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		for _, set := range []string{
			"enable_indexscan = off", "default_transaction_isolation = serializable", "default_transaction_read_only = on",
			"synchronous_commit = on", "statement_timeout = 900",
		} {
			if err := p.Exec(t.Context(), fmt.Sprintf("ALTER DATABASE %s SET %s", c.Database, set)); err != nil {
				t.Fatal(err)
			}
		}
		has(t, examined(t, postgres.Options{URL: url}, diagnose.DefaultThresholds()),
			want{backends.SeverityInfo, "plan", "the claim reads the index qsidecar_ready", ""}, // the session has its own
			want{backends.SeverityInfo, "isolation", "the default is serializable", ""},
			want{backends.SeverityWarning, "server", "default_transaction_read_only is on", "set it to off"},
			want{backends.SeverityWarning, "timeouts", "statement_timeout is 900ms", "SET statement_timeout = '5s'"},
			want{backends.SeverityWarning, "durability", "fsync is off", ""})
	})
}

// TestExamineTransactions leaves one transaction open and one prepared.
func TestExamineTransactions(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		c, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.WithoutCancel(t.Context()))
		for _, sql := range []string{
			"CREATE TABLE other (id int)", "BEGIN", "DELETE FROM other", "PREPARE TRANSACTION 'left''behind'",
			"SET application_name = 'a report'", "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT FROM other",
		} {
			if _, err := c.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
		}
		now := diagnose.DefaultThresholds()
		now.Transaction = 0
		has(t, examined(t, postgres.Options{URL: url}, now),
			want{backends.SeverityWarning, "transactions", "of postgres (a report) has a transaction open for", fmt.Sprintf("pg_terminate_backend(%d)", c.PgConn().PID())},
			want{backends.SeverityWarning, "transactions", `the prepared transaction "left'behind"`, "ROLLBACK PREPARED 'left''behind'"})
		has(t, examined(t, postgres.Options{URL: url}, diagnose.DefaultThresholds()), want{backends.SeverityInfo, "transactions", "the oldest transaction is", ""})
		for _, sql := range []string{"ROLLBACK", "ROLLBACK PREPARED 'left''behind'"} {
			if _, err := c.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		has(t, examined(t, postgres.Options{URL: url}, now), want{backends.SeverityInfo, "transactions", "no other transaction is open", ""})
	})
}

// TestExamineLocks: a transaction that locks the tables blocks all sidecars, and the check
// only briefly.
func TestExamineLocks(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		role := runner(t, p, "lockless") // it sees less than a superuser
		url := filled(t, p)
		s := open(t, postgres.Options{URL: url})
		c, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.WithoutCancel(t.Context()))
		for _, sql := range []string{"SET application_name = 'a script'", "BEGIN", "LOCK TABLE qsidecar.qsidecar_jobs IN ACCESS EXCLUSIVE MODE"} {
			if _, err := c.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		now := diagnose.DefaultThresholds()
		now.Lock = 0
		found, err := examine(t, s, nil, now)
		if err != nil {
			t.Fatal(err)
		}
		has(t, found, want{backends.SeverityError, "locks", "of postgres (a script) locks the table qsidecar_jobs (AccessExclusiveLock)", fmt.Sprintf("pg_terminate_backend(%d)", c.PgConn().PID())},
			want{backends.SeverityInfo, "claim", "another transaction holds a lock on the tables", ""})
		must(t, url, "GRANT USAGE ON SCHEMA qsidecar TO "+role)
		s = open(t, postgres.Options{URL: as(t, url, role), ReadOnly: true})
		if found, err = examine(t, s, nil, diagnose.DefaultThresholds()); err != nil || !slices.ContainsFunc(found, want{backends.SeverityError, "locks", "locks the table qsidecar_jobs", ""}.is) {
			t.Errorf("%v, %s", err, listed(found))
		}
		if _, err := c.Exec(t.Context(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		has(t, examined(t, postgres.Options{URL: url}, now))
	})
}

// TestExamineVacuum leaves dead rows.
func TestExamineVacuum(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		must(t, url, `ALTER TABLE qsidecar.qsidecar_jobs SET (autovacuum_enabled = off);
			INSERT INTO qsidecar.qsidecar_jobs (queue) SELECT 'q' FROM generate_series(1, 1000); DELETE FROM qsidecar.qsidecar_jobs`)
		few := diagnose.DefaultThresholds()
		few.DeadRows = 500
		soon := func(w want) { // the server updates its counts with a delay
			t.Helper()
			s := open(t, postgres.Options{URL: url, ReadOnly: true})
			testwait.Until(t, fmt.Sprintf("it finds %+v", w), func() bool {
				found, err := examine(t, s, nil, few)
				if err != nil {
					t.Fatal(err)
				}
				return slices.ContainsFunc(found, w.is)
			})
		}
		soon(want{backends.SeverityWarning, "vacuum", " 1000 dead ones, never vacuumed", "VACUUM \"qsidecar\".qsidecar_jobs"})
		has(t, examined(t, postgres.Options{URL: url}, diagnose.DefaultThresholds()), want{backends.SeverityInfo, "vacuum", " 1000 dead ones", ""})
		must(t, url, "VACUUM qsidecar.qsidecar_jobs")
		soon(want{backends.SeverityInfo, "vacuum", " 0 dead ones, last vacuumed at 20", ""})
	})
}

// TestExamineConnections leaves too few connections for the pool.
func TestExamineConnections(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		role := runner(t, p, "crowded")
		url := p.Database(t)
		o := postgres.Options{URL: as(t, url, role), MaxConnections: 9}
		must(t, url, "ALTER ROLE crowded CONNECTION LIMIT 5")
		found := examined(t, o, diagnose.DefaultThresholds())
		limited := want{backends.SeverityWarning, "connections", "the role's CONNECTION LIMIT leaves ", "lower the sidecars' max_connections"}
		has(t, found, limited, want{backends.SeverityError, "schema", "", ""})
		for _, f := range found {
			if !limited.is(f) {
				continue
			}
			var left, own int // the Store's background tasks can have a connection at that moment
			_, err := fmt.Sscanf(f.Text, "the role's CONNECTION LIMIT leaves %d more connections; a sidecar opens up to max_connections: 9 (open under its name by now: %d)", &left, &own)
			if left+own != 5 {
				t.Errorf("%s: %d connections in all, want 5 (%v)", f.Text, left+own, err)
			}
		}
		must(t, url, `ALTER ROLE crowded CONNECTION LIMIT -1; DO $$BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 6', current_database()); END$$`)
		has(t, examined(t, o, diagnose.DefaultThresholds()), want{backends.SeverityWarning, "connections", "the database's CONNECTION LIMIT leaves ", ""}, want{backends.SeverityError, "schema", "", ""})
		has(t, examined(t, postgres.Options{URL: url, MaxConnections: 1000}, diagnose.DefaultThresholds()), want{backends.SeverityWarning, "connections", "max_connections leaves ", ""})
	})
}

func TestExamineClock(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		for shift, words := range map[time.Duration]string{-90*time.Minute - 30*time.Second: "differ by 1h30m", time.Hour: "differ by "} {
			th := diagnose.DefaultThresholds()
			th.Now = func() time.Time { return time.Now().Add(shift) }
			has(t, examined(t, postgres.Options{URL: url}, th), want{backends.SeverityWarning, "clock", words, "NTP"})
		}
	})
}

// TestExaminePooled: through a pooler the check plans the claim for its arguments, and
// leaves nothing in other clients' sessions.
func TestExaminePooled(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		pooled, err := poolers[p].URL(url)
		if err != nil {
			t.Fatal(err)
		}
		has(t, examined(t, postgres.Options{URL: pooled}, diagnose.DefaultThresholds()), want{backends.SeverityInfo, "pooler", "a pooler stands between", ""}, want{backends.SeverityInfo, "plan", "planned each time", ""})
		must(t, url, "DROP INDEX qsidecar.qsidecar_ready")
		has(t, examined(t, postgres.Options{URL: pooled}, diagnose.DefaultThresholds()), want{backends.SeverityError, "indexes", "qsidecar_ready", ""}, want{backends.SeverityError, "plan", "no use of", ""})
		config, err := pgx.ParseConfig(pooled)
		if err != nil {
			t.Fatal(err)
		}
		config.DefaultQueryExecMode = pgx.QueryExecModeExec
		c, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.WithoutCancel(t.Context()))
		var left int
		var seqscan string
		if err := c.QueryRow(t.Context(), "SELECT count(*), current_setting('enable_seqscan') FROM pg_prepared_statements").Scan(&left, &seqscan); err != nil {
			t.Fatal(err)
		}
		if left != 0 || seqscan != "on" {
			t.Errorf("%d statements are left prepared, and enable_seqscan is %s", left, seqscan)
		}
	})
}

// TestExamineStandby checks a server that doesn't accept writes.
func TestExamineStandby(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	t.Parallel()
	versions := testserver.Versions()
	newest := versions[len(versions)-1]
	if newest == "" {
		return // a test must not change the environment's server
	}
	p, err := testserver.StartPostgres(t.Context(), newest, testserver.Options{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}()
	s, err := postgres.Open(t.Context(), postgres.Options{URL: p.Admin()})
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(t.Context(), p.Admin())
	if err != nil {
		t.Fatal(err)
	}
	var dir string
	err = c.QueryRow(t.Context(), "SHOW data_directory").Scan(&dir)
	if err := errors.Join(err, c.Close(t.Context()), s.Close(), p.Halt(), os.WriteFile(filepath.Join(dir, "standby.signal"), nil, 0o644), p.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	has(t, examined(t, postgres.Options{URL: p.Admin()}, diagnose.DefaultThresholds()),
		want{backends.SeverityError, "server", "is a standby", "all of the servers"},
		want{backends.SeverityInfo, "durability", "what is answered is on disk", ""},
		want{backends.SeverityInfo, "plan", "qsidecar_ready", ""})
}

// TestExamineLeftovers: what another client of the pooler left in a session is reported.
func TestExamineLeftovers(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		b, err := testserver.StartPgBouncer(t.Context(), p, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.Stop(); err != nil {
				t.Error(err)
			}
		})
		pooled, err := b.URL(filled(t, p))
		if err != nil {
			t.Fatal(err)
		}
		look := func() []backends.Finding {
			s := open(t, postgres.Options{URL: pooled, ReadOnly: true})
			found, err := examine(t, s, nil, diagnose.DefaultThresholds())
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
		for _, f := range look() {
			if f.Topic == "pooler" && f.Severity != backends.SeverityInfo {
				t.Errorf("a clean session: %v", f)
			}
		}
		if err := exec(t, pooled, "SET session_replication_role = replica; SET search_path = other; SET ROLE pg_monitor"); err != nil {
			t.Fatal(err)
		}
		has(t, look(), want{backends.SeverityWarning, "pooler", "in a session: role = pg_monitor, search_path = other, session_replication_role = replica.", "server_reset_query_always = 1"})
	})
}
