package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// nextVersion is a migration that follows the latest one: a column and an index. Programs of
// migrate.Latest can run beside a program that has it.
func nextVersion(t *testing.T) []migrate.Migration {
	t.Helper()
	sql, err := os.ReadFile("migrate/testdata/next.sql")
	if err != nil {
		t.Fatal(err)
	}
	return []migrate.Migration{{SQL: string(sql), Indexes: []migrate.Index{{Name: "qsidecar_test_index", On: "{s}.qsidecar_failures (at, cause)"}}}}
}

// first creates the tables of this version, with rows in each. nextVersion leads to later ones.
func first(t *testing.T, url, schema string) {
	t.Helper()
	must(t, url, in(schema, migrate.Fresh(migrate.Latest)+`;
		INSERT INTO {s}.qsidecar_sidecars (sidecar, name, heartbeats, expires_at) VALUES (1, 'old', 1, now() + interval '1 hour');
		INSERT INTO {s}.qsidecar_jobs (queue) VALUES ('q'), ('q');
		INSERT INTO {s}.qsidecar_failures SELECT n, 1, 1, 'nacked', '', now() FROM generate_series(1, 1000) n`))
}

// shape returns the definitions of everything that migrations create.
func shape(t *testing.T, url, schema string) (all []string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(t.Context()))
	rows, err := c.Query(t.Context(), `
		SELECT format('%s.%s %s %s %s %s %s', table_name, column_name, ordinal_position, data_type, collation_name, is_nullable, column_default)
		FROM information_schema.columns WHERE table_schema = $1
		UNION ALL SELECT format('%s valid %s', pg_get_indexdef(indexrelid), indisvalid) FROM pg_index i
			JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1
		UNION ALL SELECT format('%s %s %s %s', c.relname, c.relkind, c.relpersistence, c.reloptions) FROM pg_class c
			JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1
		UNION ALL SELECT format('%s.%s %s', r.conrelid::regclass, r.conname, pg_get_constraintdef(r.oid)) FROM pg_constraint r
			JOIN pg_namespace n ON n.oid = r.connamespace WHERE n.nspname = $1
		UNION ALL SELECT pg_get_triggerdef(g.oid) FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid
			JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1
		UNION ALL SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $1
		UNION ALL SELECT version || ' for ' || min_program FROM `+quoteName(schema)+`.qsidecar_meta
		ORDER BY 1`, schema)
	if err == nil {
		all, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		all[i] = strings.ReplaceAll(all[i], schema, "{s}")
	}
	return all
}

// sees waits until a query returns true.
func sees(t *testing.T, url, what, sql string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(t.Context()))
	testwait.Until(t, what, func() (is bool) {
		if err := c.QueryRow(t.Context(), sql).Scan(&is); err != nil {
			t.Fatal(err)
		}
		return is
	})
}

// waitsFor returns a query for whether a statement waits for a lock.
func waitsFor(statement string) string {
	return fmt.Sprintf(`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
		AND wait_event_type = 'Lock' AND query LIKE '%s%%')`, statement)
}

// opening opens a Store in the background. Because of the long idle timeout, a machine that stalls does not lose the lock.
func opening(t *testing.T, o Options) (done <-chan error) {
	o.idle = time.Hour
	c := make(chan error, 1)
	go func() {
		s, err := Open(t.Context(), o)
		if err == nil {
			err = s.Close()
		}
		c <- err
	}()
	return c
}

// TestMigrations: all paths to a version create the same tables, and keep the rows.
func TestMigrations(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := p.Database(t)
		pooled, err := poolers[p].URL(url)
		if err != nil {
			t.Fatal(err)
		}
		later := nextVersion(t)
		open(t, Options{URL: url, Schema: "fresh"})
		open(t, Options{URL: url, Schema: "fresh_next", later: later})
		latest, after := shape(t, url, "fresh"), shape(t, url, "fresh_next")
		for schema, fill := range map[string]func(schema string){
			"by_hand":            func(s string) { script(t, url, migrate.SQL(s, "postgres", 0)) },
			"pooled":             func(s string) { open(t, Options{URL: pooled, Schema: s}) },
			"later_next":         func(s string) { first(t, url, s); open(t, Options{URL: url, Schema: s, later: later}) },
			"by_hand_next":       func(s string) { script(t, url, migrate.SQL(s, "postgres", 0, later...)) },
			"later_by_hand_next": func(s string) { first(t, url, s); script(t, url, migrate.SQL(s, "postgres", migrate.Base, later...)) },
			"by_hand_twice_next": func(s string) {
				script(t, url, migrate.SQL(s, "postgres", 0, later...)+migrate.SQL(s, "postgres", migrate.Base, later...))
			},
			"later_pooled_next": func(s string) { first(t, url, s); open(t, Options{URL: pooled, Schema: s, later: later}) },
			"later_by_a_half_next": func(s string) {
				first(t, url, s)
				must(t, url, in(s, later[0].SQL))
				open(t, Options{URL: url, Schema: s, later: later})
			},
		} {
			fill(schema)
			want := latest
			if strings.HasSuffix(schema, "next") {
				want = after
			}
			if diff := cmp.Diff(want, shape(t, url, schema)); diff != "" {
				t.Errorf("%s (-fresh +this):\n%s", schema, diff)
			}
			if s := open(t, Options{URL: url, Schema: schema}); strings.HasPrefix(schema, "later") {
				beat(t, s, 7)
				if jobs := take(t, s, 7, 9, 1); len(jobs) != 2 {
					t.Errorf("%s: %d jobs are left, want 2", schema, len(jobs))
				}
				sees(t, url, "the sidecars' versions", fmt.Sprintf(
					`SELECT (SELECT array_agg(max_version ORDER BY sidecar) FROM %s.qsidecar_sidecars) = '{NULL,%d}'`, schema, migrate.Latest))
			}
		}
	})
}

// TestNeighbours: a sidecar of this version works beside one of the next.
func TestNeighbours(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := p.Database(t)
		backendtest.CheckNeighbours(t, open(t, Options{URL: url}), func() backends.Backend {
			return open(t, Options{URL: url, later: nextVersion(t)})
		})
	})
}

func script(t *testing.T, url, sql string) {
	t.Helper()
	if err := testserver.RunScript(t.Context(), url, sql); err != nil {
		t.Fatal(err)
	}
}

// TestMigrationTakesItsTime: no timeout of the sidecar's statements or of its role ends a
// migration. While it waits for others, it blocks no program.
func TestMigrationTakesItsTime(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := p.Database(t)
		first(t, url, "qsidecar")
		must(t, url, `DO $$BEGIN
			EXECUTE format('ALTER DATABASE %I SET statement_timeout = ''1h''', current_database());
			EXECUTE format('ALTER DATABASE %I SET lock_timeout = ''1h''', current_database());
		END$$`)
		const insert = `INSERT INTO qsidecar.qsidecar_failures VALUES (%d, 2, 1, 'nacked', '', now())`
		writer := begun(t, url, fmt.Sprintf(insert, 1))
		dump := begun(t, url, "LOCK TABLE qsidecar.qsidecar_sidecars IN ACCESS SHARE MODE")
		var log bytes.Buffer
		ends := map[string]string{} // the timeouts that would end the statements of the migration
		done := opening(t, Options{URL: url, later: nextVersion(t), StatementTimeout: time.Hour, Log: slog.New(slog.NewTextHandler(&log, nil)), migrating: func(c *pgx.Conn, sql string) error {
			for _, name := range []string{"CREATE INDEX", "-- Schema version"} {
				if !strings.HasPrefix(sql, name) {
					continue
				}
				var statement, lock string
				if err := c.QueryRow(t.Context(), "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')").Scan(&statement, &lock); err != nil {
					return err
				}
				ends[name] = statement + " " + lock
			}
			return nil
		}})

		sees(t, url, "the index waits for the writer", waitsFor("CREATE INDEX"))
		must(t, url, fmt.Sprintf(insert, 2)) // blocks no other program
		if err := writer.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		sees(t, url, "the new columns wait for the dump", waitsFor("-- Schema version 2"))
		for range 20 { // they succeed while the migration waits
			must(t, url, `UPDATE qsidecar.qsidecar_sidecars SET heartbeats = heartbeats + 1 WHERE sidecar = 1`)
		}
		if err := dump.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatalf("the migration: %v", err)
		}
		if want := map[string]string{"CREATE INDEX": "0 0", "-- Schema version": "0 200ms"}; !maps.Equal(ends, want) {
			t.Errorf("statement_timeout and lock_timeout are %v, want %v", ends, want)
		}
		if !strings.Contains(log.String(), "event=migration_waiting") {
			t.Errorf("the log does not mention the wait: %s", &log)
		}
	})
}

// TestMigrationInterrupted: a sidecar is killed at each step of a migration, and
// the next one completes it.
func TestMigrationInterrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := p.Database(t)
		later := nextVersion(t)
		open(t, Options{URL: url, Schema: "fresh", later: later})
		want := shape(t, url, "fresh")
		dead := errors.New("killed")
		for _, from := range []int{0, migrate.Base} {
			for last, over := 1, false; !over; last++ {
				schema := fmt.Sprintf("from_%d_%d", from, last)
				if from > 0 {
					first(t, url, schema)
				}
				n := 0
				s, err := Open(t.Context(), Options{URL: url, Schema: schema, later: later, migrating: func(c *pgx.Conn, _ string) error {
					if n++; n < last {
						return nil
					}
					return errors.Join(dead, c.Close(t.Context()))
				}})
				if over = err == nil; !over && !errors.Is(err, dead) {
					t.Fatalf("killed at step %d: %v", last, err)
				}
				if over {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				}
				open(t, Options{URL: url, Schema: schema, later: later})
				if diff := cmp.Diff(want, shape(t, url, schema)); diff != "" {
					t.Errorf("killed at step %d from version %d (-fresh +this):\n%s", last, from, diff)
				}
				if last > 100 {
					t.Fatal("it never ends")
				}
				if over && last < 5 {
					t.Errorf("from version %d there were only %d steps to kill it at", from, last)
				}
			}
		}
	})
}

// TestIndexBuildKilled ends the session that builds an index, which leaves an invalid one.
func TestIndexBuildKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		for _, name := range []string{"directly", "through a pooler"} {
			url := p.Database(t)
			first(t, url, "qsidecar")
			way := url
			if name != "directly" {
				var err error
				if way, err = poolers[p].URL(url); err != nil {
					t.Fatal(err)
				}
			}
			writer := begun(t, url, `INSERT INTO qsidecar.qsidecar_failures VALUES (1, 2, 1, 'nacked', '', now())`)
			ctx, cancel := context.WithCancel(t.Context())
			done := opening(t, Options{URL: way, later: nextVersion(t), migrating: func(_ *pgx.Conn, sql string) error {
				if strings.HasPrefix(sql, "DROP INDEX") { // the killed sidecar does not continue
					cancel()
				}
				return ctx.Err()
			}})
			sees(t, url, name+": the index is being built", waitsFor("CREATE INDEX"))
			must(t, url, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'CREATE INDEX%'`)
			if err := <-done; err == nil {
				t.Fatalf("%s: the killed migration went well", name)
			}
			sees(t, url, name+": a broken index", `SELECT count(*) = 1 FROM pg_index WHERE NOT indisvalid`)
			again := opening(t, Options{URL: way, later: nextVersion(t)})
			sees(t, url, name+": the next sidecar clears up", waitsFor("DROP INDEX")) // waits for the same writer
			must(t, url, `INSERT INTO qsidecar.qsidecar_failures VALUES (2, 2, 1, 'nacked', '', now())`)
			if err := writer.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-again; err != nil {
				t.Errorf("%s: %v", name, err)
			}
			sees(t, url, name+": whole indexes", `SELECT count(*) = 0 FROM pg_index WHERE NOT indisvalid`)
			sees(t, url, name+": its version", fmt.Sprintf(`SELECT version = %d FROM qsidecar.qsidecar_meta`, migrate.Latest+1))
		}
	})
}

// TestManyMigrateAtOnce: several sidecars of the new version start while one of
// the old version works.
func TestManyMigrateAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := p.Database(t)
		first(t, url, "qsidecar")
		later := nextVersion(t)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				s, err := Open(t.Context(), Options{URL: url, later: later})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: 2, Timeout: time.Minute}); err != nil {
					t.Error(err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		over := make(chan struct{})
		go func() { wg.Wait(); close(over) }()
		for busy := true; busy; {
			select {
			case <-over:
				busy = false
			default: // what an old sidecar does continuously
			}
			must(t, url, `UPDATE qsidecar.qsidecar_sidecars SET heartbeats = heartbeats + 1 WHERE sidecar = 1; INSERT INTO qsidecar.qsidecar_failures
				SELECT count(*) + 1, 9, 1, 'nacked', '', now() FROM qsidecar.qsidecar_failures`)
		}
		sees(t, url, "one migration", fmt.Sprintf(`SELECT version = %d FROM qsidecar.qsidecar_meta`, migrate.Latest+1))
	})
}
