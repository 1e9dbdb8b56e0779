package sqlserver

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	mssql "github.com/microsoft/go-mssqldb"
	"go.uber.org/goleak"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// envURL names a database of a SQL Server, on which the conformance suite runs. No SQL Server
// can be downloaded for a test.
const envURL = "QSIDECAR_TEST_SQLSERVER"

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	failed := func(err error) bool {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		return err != nil
	}
	code = m.Run()
	if places.translator != nil {
		failed(places.translator.close())
	}
	if places.server != nil {
		defer func() { failed(places.server.Stop()) }()
	}
	// The server's own goroutines wait for its end.
	if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/qsidecar/qsidecar/internal/testserver/local.guard.func1")); code == 0 {
		failed(err)
	}
	return code
}

// places holds the emulator's server. It starts when a test first needs it.
var places struct {
	once       sync.Once
	err        error
	server     *testserver.Postgres
	translator *translations
}

// standIn is a new database of the emulator's server.
func standIn(t testing.TB) string {
	t.Helper()
	places.once.Do(func() {
		versions := testserver.Versions()
		if places.server, places.err = testserver.StartPostgres(context.Background(), versions[len(versions)-1], testserver.Options{}); places.err == nil {
			places.translator, places.err = readTranslations()
		}
	})
	if places.err != nil {
		t.Fatal(places.err)
	}
	return places.server.Database(t)
}

func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// loseCommit breaks the connections at the next commit.
func (s *Store) loseCommit(before bool, cut func()) {
	hook := func(now bool) {
		if now == before {
			s.fault.Store(nil)
			cut()
		}
	}
	s.fault.Store(&hook)
}

// beforeCommit calls f before the next COMMIT.
func (s *Store) beforeCommit(f func()) {
	hook := func(before bool) {
		if before {
			s.fault.Store(nil)
			f()
		}
	}
	s.fault.Store(&hook)
}

// commitErrors are what a gateway answers a COMMIT with, if the server is gone: Azure's failovers, and a fatal error.
func (s *Store) commitErrors(e *emulator) map[string]func(before bool) {
	all := map[string]func(before bool){}
	for number, class := range map[int32]uint8{40613: 17, 40197: 17, 10054: 20, 233: 20, 6005: 14, 596: 21, 77777: 16} {
		all[fmt.Sprint(number)] = func(before bool) {
			hook := func(now bool) {
				if now == before {
					s.fault.Store(nil)
					e.gateway.Store(&mssql.Error{Number: number, Class: class, Message: "the connection was closed by the remote host"})
				}
			}
			s.fault.Store(&hook)
		}
	}
	return all
}

// emulation opens a Store on the emulator.
func emulation(t testing.TB, url, schema string) (*Store, *emulator, Options) {
	e, o := emulatorOf(url, schema)
	return open(t, o), e, o
}

// emulatorOf returns an emulator and the options of its Stores.
func emulatorOf(url, schema string) (*emulator, Options) {
	e := &emulator{url: url, schema: schema, translator: places.translator, conns: map[*emulated]struct{}{}}
	return e, Options{URL: "sqlserver://app@stand.in?database=qsidecar", Schema: schema, driver: func(*mssql.Connector) driver.Connector { return e }}
}

// quickTopics are the topics of the suite that -short runs: leases, outcomes, dead sidecars and
// retention. All topics run on four other engines then.
var quickTopics = []string{"Settle", "Leases", "Sidecars", "Retention", "LockedRows"}

// application is another program that locks keys, as another sidecar does that stores jobs.
func application(t *testing.T, url, schema string) (lock func(queue, key string) error, end func()) {
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	lock = func(queue, key string) error {
		if c.PgConn().TxStatus() == 'I' {
			if _, err := c.Exec(t.Context(), "BEGIN"); err != nil {
				return err
			}
		}
		_, err := c.Exec(t.Context(), "INSERT INTO "+schema+".qsidecar_keys AS k (queue, name, job, expires_at, state) VALUES ($1, convert_to($2, 'UTF8'), 0, now() AT TIME ZONE 'UTC', 'deleted') "+
			"ON CONFLICT (queue, name) DO UPDATE SET job = k.job", queue, key)
		return err
	}
	return lock, func() {
		if _, err := c.Exec(t.Context(), "COMMIT"); err != nil {
			t.Error(err)
		}
	}
}

// lockRow locks a row in an open transaction of another program, until unlock is called or the test ends.
func lockRow(t *testing.T, url, row string) (unlock func()) {
	c, err := pgx.Connect(t.Context(), url)
	if err == nil {
		_, err = c.Exec(t.Context(), "BEGIN; SELECT FROM "+row+" FOR UPDATE")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return func() { // a close alone would leave the lock for a moment
		if _, err := c.Exec(t.Context(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
	}
}

// standInSchemas are the suite's schemas. A test that passes leaves its schema and its sessions to a later one, because creating new ones
// takes longer than most tests.
type standInSchemas struct {
	url    string
	beside func(t *testing.T, sql string, args ...any)
	mu     sync.Mutex
	all    []*standInSchema
	free   []*standInSchema
}

// standInSchema is one schema with its Stores.
type standInSchema struct {
	name   string
	e      *emulator
	o      Options
	stores []*Store
	used   int // how many of stores the present test uses
}

func newStandInSchemas(t *testing.T, url string, beside func(t *testing.T, sql string, args ...any)) *standInSchemas {
	p := &standInSchemas{url: url, beside: beside}
	t.Cleanup(func() {
		for _, x := range p.all {
			for _, s := range x.stores {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}
		}
	})
	return p
}

// take returns a schema without jobs for a test.
func (s *standInSchemas) take(t *testing.T) *standInSchema {
	s.mu.Lock()
	defer s.mu.Unlock()
	var x *standInSchema
	if last := len(s.free) - 1; last >= 0 {
		x, s.free = s.free[last], s.free[:last]
	} else {
		x = &standInSchema{name: fmt.Sprintf("test_%d", len(s.all)+1)}
		x.e, x.o = emulatorOf(s.url, x.name)
		s.all = append(s.all, x)
	}
	t.Cleanup(func() {
		// Statements that a fault left behind can still be running.
		if !t.Failed() && !strings.Contains(t.Name(), "/Faults/") && !strings.Contains(t.Name(), "/Emptied") && x.clean(t, s.beside) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.free = append(s.free, x)
		}
	})
	return x
}

// store returns a Store that the test doesn't use yet.
func (s *standInSchema) store(t *testing.T) *Store {
	if s.used == len(s.stores) {
		store, err := Open(t.Context(), s.o)
		if err != nil {
			t.Fatal(err)
		}
		s.stores = append(s.stores, store)
	}
	s.used++
	return s.stores[s.used-1]
}

// clean empties the schema, and reports whether another test can use it. The Stores keep their rows of qsidecar_commits.
func (s *standInSchema) clean(t *testing.T, beside func(t *testing.T, sql string, args ...any)) bool {
	if s.e.lockTimeouts {
		return false // the sessions keep the setting
	}
	s.used = 0
	for _, store := range s.stores {
		if store.Life().Err() != nil {
			return false // the test closed it
		}
		store.Forget()
		store.fault.Store(nil)
	}
	beside(t, fmt.Sprintf(`DO $$DECLARE t name; BEGIN
		FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = '%[1]s' AND tablename LIKE 'qsidecar%%' AND tablename NOT IN ('qsidecar_meta', 'qsidecar_commits') LOOP
			EXECUTE format('DELETE FROM %[1]s.%%I', t);
		END LOOP;
		ALTER SEQUENCE %[1]s.qsidecar_sequence RESTART;
		DROP FUNCTION IF EXISTS %[1]s.refuse() CASCADE;
		UPDATE %[1]s.clock SET now = clock_timestamp() AT TIME ZONE 'UTC';
	END$$`, s.name))
	return true
}

// TestConformanceByEmulation runs the conformance suite on the batches that would go to SQL
// Server. PostgreSQL carries them out. See emulator for what that shows and what it does not.
func TestConformanceByEmulation(t *testing.T) {
	url := standIn(t)
	beside := func(t *testing.T, sql string, args ...any) {
		t.Helper()
		ctx := context.WithoutCancel(t.Context()) // after the test too
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Exec(ctx, sql, args...)
		if err = errors.Join(err, c.Close(ctx)); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	schemas := newStandInSchemas(t, url, beside)
	backendtest.Run(t, func(t *testing.T) *backendtest.Database {
		if topic := strings.Split(t.Name(), "/")[1]; testing.Short() && !slices.Contains(quickTopics, topic) {
			t.Skip("make check runs this")
		}
		x := schemas.take(t)
		s, e, schema := x.store(t), x.e, x.name
		values := oddValues
		if strings.HasSuffix(t.Name(), "/OlderThanTheChecks") {
			values = nil // the emulated constraints can't be younger than a row, so it would do what RefusedOrSkipped does
		}
		e.lockTimeouts = strings.Contains(t.Name(), "/LockedRows/")
		return &backendtest.Database{
			Backend:     s,
			OpenAnother: func() backends.Backend { return x.store(t) },
			AdvanceClock: func(d time.Duration) {
				beside(t, fmt.Sprintf("UPDATE %s.clock SET now = now + $1::text::interval", schema), fmt.Sprintf("%d microseconds", d.Microseconds()))
			},
			LoseCommit:   func(before bool) { s.loseCommit(before, e.cut) },
			BeforeCommit: s.beforeCommit,
			CommitErrors: s.commitErrors(e),
			EmptyTable:   func(table string) { beside(t, fmt.Sprintf("DELETE FROM %s.qsidecar_%s", schema, table)) },
			SmallTables:  []string{"failures", "keys", "sidecars", "queues", "cancelled", "progress", "pending", "schedules", "batches", "batch_members", "batch_notes", "history", "requeues", "commits", "gates", "capped", "stripes", "admissions"},
			RefuseJobs: func(queue, reason string) {
				beside(t, fmt.Sprintf(`CREATE FUNCTION %[1]s.refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION '%[2]s'; END$$`, schema, reason))
				beside(t, fmt.Sprintf(`CREATE TRIGGER refuse BEFORE INSERT ON %[1]s.qsidecar_jobs FOR EACH ROW WHEN (NEW.queue = '%[2]s') EXECUTE FUNCTION %[1]s.refuse()`, schema, queue))
			},
			RefuseChanges: func(r backendtest.Refusal) (allow func()) {
				beside(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION %[1]s.refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION '%[2]s'; END$$`, schema, r.Reason))
				beside(t, fmt.Sprintf(`CREATE TRIGGER refuse BEFORE %[2]s ON %[1]s.qsidecar_jobs FOR EACH ROW WHEN (%[3]s) EXECUTE FUNCTION %[1]s.refuse()`,
					schema, strings.Join(r.On(), " OR "), r.When(func(s string) string { return "'" + s + "'" })))
				return func() { beside(t, fmt.Sprintf(`DROP TRIGGER refuse ON %s.qsidecar_jobs`, schema)) }
			},
			InsertJob: func(queue, payload string) {
				beside(t, fmt.Sprintf(`INSERT INTO %s.qsidecar_jobs (queue, payload) VALUES ($1, convert_to($2, 'UTF8'))`, schema), queue, payload)
			},
			AdmitsInCommits: true,
			LockRow:         func(id string) func() { return lockRow(t, url, schema+".qsidecar_jobs WHERE id = "+id) },
			LockGate: func(queue string) func() {
				e.lockTimeouts = true
				return lockRow(t, url, fmt.Sprintf("%s.qsidecar_gates WHERE queue = '%s'", schema, queue))
			},
			LockStripe: func(queue, group string) func() {
				e.lockTimeouts = true
				_, stripes := core.StripesOf([]backends.Group{{Queue: queue, Name: group}})
				return lockRow(t, url, fmt.Sprintf("%s.qsidecar_stripes WHERE queue = '%s' AND stripe = %d", schema, queue, stripes[0]))
			},
			Application:   func() (func(queue, key string) error, func()) { return application(t, url, schema) },
			InvalidValues: values,
			InsertRow: func(column, expression string, _ bool) error {
				c, err := pgx.Connect(t.Context(), url)
				if err != nil {
					t.Fatal(err)
				}
				_, err = c.Exec(t.Context(), backendtest.InsertSQL(schema+".qsidecar_jobs", column, expression))
				if failed := c.Close(context.WithoutCancel(t.Context())); failed != nil {
					t.Error(failed)
				}
				return err
			},
		}
	})
}
