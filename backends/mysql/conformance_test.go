package mysql

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/dial/dialtest"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// servers holds the servers of this run by kind.
var servers = map[testserver.Kind]*testserver.MySQL{}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	for _, kind := range testserver.MySQLKinds() {
		server, err := testserver.StartMySQL(context.Background(), kind, testserver.Options{})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			if err := server.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		fmt.Println("testing on", kind, server.Version)
		servers[kind] = server
	}
	if len(servers) == 0 {
		fmt.Fprintln(os.Stderr, "there is no server to test on")
		return 1
	}
	code := m.Run()
	// The servers' own goroutines wait for them to end.
	if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/qsidecar/qsidecar/internal/testserver/local.guard.func1")); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// everywhere runs a test on each server.
func everywhere(t *testing.T, f func(t *testing.T, m *testserver.MySQL)) {
	t.Parallel()
	inTurn(t, func(t *testing.T, m *testserver.MySQL) {
		t.Parallel()
		f(t, m)
	})
}

// inTurn runs a test on one server after the other. Unless it is parallel, no other test runs beside it.
func inTurn(t *testing.T, f func(t *testing.T, m *testserver.MySQL)) {
	for kind, m := range servers {
		t.Run(string(kind), func(t *testing.T) { f(t, m) })
	}
}

func open(t testing.TB, o Options) *Store {
	t.Helper()
	o.connect = testwait.Limit // a login can be slow on a busy machine
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

// must runs statements on a connection outside of the Store, as an application does.
func must(t testing.TB, m *testserver.MySQL, database string, statements ...string) {
	t.Helper()
	db, err := m.Open(database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, sql := range statements {
		if _, err := db.ExecContext(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

func literal(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'"
}

// databases holds the databases of the suite. A test that passes leaves its database to a later test,
// because creating the tables takes longer than most tests.
type databases struct {
	t    *testing.T // the test around all of them
	m    *testserver.MySQL
	mu   sync.Mutex
	free []string
}

// get returns a free database or a new one, which the test owns until it ends. Its clock stands still,
// except when the test advances it.
func (d *databases) get(t *testing.T) string {
	name := d.pop()
	if name == "" {
		name = d.m.Database(d.t)
		must(t, d.m, name, "CREATE TABLE test_clock (at DATETIME(6) NOT NULL)", "INSERT INTO test_clock VALUES (UTC_TIMESTAMP(6))")
	}
	t.Cleanup(func() { // after the test's Stores are closed
		// Statements that a fault left behind can still be under way.
		if t.Failed() || strings.Contains(t.Name(), "/Faults/") || strings.Contains(t.Name(), "/InvalidValues/") || strings.Contains(t.Name(), "/Emptied") {
			return
		}
		if err := d.clean(name); err != nil {
			t.Error(err)
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.free = append(d.free, name)
	})
	return name
}

func (d *databases) pop() (name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.free); n > 0 {
		name, d.free = d.free[n-1], d.free[:n-1]
	}
	return name
}

// clean deletes what a test stored.
func (d *databases) clean(name string) error {
	statements := []string{"UPDATE " + name + ".test_clock SET at = UTC_TIMESTAMP(6)", "DROP TRIGGER IF EXISTS " + name + ".refuse"}
	for _, table := range []string{"jobs", "failures", "prunable", "expiring", "keys", "sidecars", "queues", "gates", "capped", "cancelled", "progress", "pending", "stripes", "admissions", "admitted", "schedules", "batches", "batch_members", "batch_notes", "history", "commits", "leases"} {
		statements = append(statements, "DELETE FROM "+name+".qsidecar_"+table)
	}
	return d.m.Exec(context.Background(), statements...)
}

// take returns what a test of the suite receives.
func (d *databases) take(t *testing.T) *backendtest.Database {
	m, name := d.m, d.get(t)
	o := Options{URL: m.URL(name), clock: "(SELECT at FROM test_clock)", idle: time.Hour} // on a machine that stalls the server ends no transaction
	if strings.Contains(t.Name(), "/Faults/") {
		o.wrap = dialtest.Through
	}
	s := open(t, o)
	var beside *sql.Conn
	return &backendtest.Database{
		Backend:     s,
		OpenAnother: func() backends.Backend { return open(t, o) },
		AdvanceClock: func(by time.Duration) {
			must(t, m, name, fmt.Sprintf("UPDATE test_clock SET at = at + INTERVAL %d MICROSECOND", by.Microseconds()))
		},
		LoseCommit:   s.loseCommit,
		BeforeCommit: s.beforeCommit,
		CommitErrors: s.commitErrors(),
		RemoveTable: func(table string) func() {
			must(t, m, name, "RENAME TABLE qsidecar_"+table+" TO away")
			return func() { must(t, m, name, "RENAME TABLE away TO qsidecar_"+table) }
		},
		EmptyTable:  func(table string) { must(t, m, name, "TRUNCATE qsidecar_"+table) },
		SmallTables: []string{"meta", "failures", "prunable", "expiring", "keys", "sidecars", "queues", "gates", "capped", "stripes", "admissions", "admitted", "cancelled", "progress", "pending", "schedules", "batches", "batch_members", "batch_notes", "history", "commits"},
		RefuseJobs: func(queue, reason string) {
			must(t, m, name, fmt.Sprintf(`CREATE TRIGGER refuse BEFORE INSERT ON qsidecar_jobs FOR EACH ROW
				IF NEW.queue = %s THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = %s; END IF`, literal(queue), literal(reason)))
		},
		RefuseChanges: func(r backendtest.Refusal) (allow func()) {
			for _, on := range r.On() {
				must(t, m, name, fmt.Sprintf(`CREATE TRIGGER refuse_%s BEFORE %[1]s ON qsidecar_jobs FOR EACH ROW
					IF %s THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = %s; END IF`, on, r.When(literal), literal(r.Reason)))
			}
			return func() {
				for _, on := range r.On() {
					must(t, m, name, "DROP TRIGGER refuse_"+on)
				}
			}
		},
		InsertJob: func(queue, payload string) {
			must(t, m, name, fmt.Sprintf(`INSERT INTO qsidecar_jobs (queue, payload) VALUES (%s, %s)`, literal(queue), literal(payload)))
		},
		Producer: func() backendtest.Producer { return producer(t, m, name) },
		LockRow:  func(id string) func() { return lockRow(t, m, name, "qsidecar_jobs WHERE id = "+id) },
		LockGate: func(queue string) func() { return lockRow(t, m, name, "qsidecar_gates WHERE queue = "+literal(queue)) },
		LockTable: func(table string) func() {
			c := connect(t, m, name)
			runSQL(t, c, "LOCK TABLES qsidecar_"+table+" WRITE")
			return func() { runSQL(t, c, "UNLOCK TABLES") }
		},
		Poor:            func() *backendtest.Poor { return poor(t, m, name, o) },
		AdmitsInCommits: s.dialer.Server.SkipLocked,
		LockStripe: func(queue, group string) func() {
			_, stripes := core.StripesOf([]backends.Group{{Queue: queue, Name: group}})
			return lockRow(t, m, name, fmt.Sprintf("qsidecar_stripes WHERE queue = %s AND stripe = %d", literal(queue), stripes[0]))
		},
		Application: func() (func(queue, key string) error, func()) {
			c, begun := connect(t, m, name), false
			return func(queue, key string) error {
				if !begun {
					runSQL(t, c, "BEGIN")
					begun = true
				}
				_, err := c.ExecContext(t.Context(), "INSERT INTO qsidecar_keys (queue, `key`, job, expires_at, state) VALUES (?, ?, 0, UTC_TIMESTAMP(6), 'deleted') "+
					"ON DUPLICATE KEY UPDATE job = job", queue, []byte(key))
				return err
			}, func() { runSQL(t, c, "COMMIT"); begun = false }
		},
		InvalidValues: invalidValues,
		InsertRow: func(column, expression string, old bool) error {
			if beside == nil {
				beside = connect(t, m, name)
				// What a session that is not strict stores.
				runSQL(t, beside, "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
				if old {
					runSQL(t, beside, "ALTER TABLE qsidecar_jobs DROP CONSTRAINT qsidecar_usable")
				}
			}
			_, err := beside.ExecContext(t.Context(), backendtest.InsertSQL("qsidecar_jobs", column, expression))
			return err
		},
	}
}

// producer is another program on a connection of its own. Its isolation is READ COMMITTED:
// with another one MySQL can leave gap locks beside its rows, which claims wait for.
func producer(t *testing.T, m *testserver.MySQL, database string) backendtest.Producer {
	c := connect(t, m, database)
	runSQL(t, c, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
	return backendtest.Producer{
		Begin: func() { runSQL(t, c, "START TRANSACTION") },
		Insert: func(queue, group string, payloads []string, old bool) {
			at := "DEFAULT"
			if old {
				at = migrate.Position + " - 2000000"
			}
			var rows []string
			for _, p := range payloads {
				rows = append(rows, "("+literal(queue)+", "+literal(p)+", "+at+", NULLIF("+literal(group)+", ''))")
			}
			runSQL(t, c, "INSERT INTO qsidecar_jobs (queue, payload, position, group_name) VALUES "+strings.Join(rows, ", "))
		},
		End: func(commit bool) {
			if commit {
				runSQL(t, c, "COMMIT")
			} else {
				runSQL(t, c, "ROLLBACK")
			}
		},
	}
}

// loseCommit breaks the connection at the next commit.
func (s *Store) loseCommit(before bool) {
	hook := func(c *session.Conn, now bool) {
		if now == before {
			s.fault.Store(nil)
			if err := c.Wire.Close(); err != nil {
				panic(err)
			}
			c.Bad = !before
		}
	}
	s.fault.Store(&hook)
}

// beforeCommit calls f before the next COMMIT.
func (s *Store) beforeCommit(f func()) {
	hook := func(_ *session.Conn, before bool) {
		if before {
			s.fault.Store(nil)
			f()
		}
	}
	s.fault.Store(&hook)
}

// commitErrors are what proxies answer a COMMIT with, if they have lost the server: ProxySQL and MaxScale 2013, 2006 and 2003,
// vtgate 1105, ProxySQL 9001, and MaxScale 1927 and 1290. The last one is a number that no one uses.
func (s *Store) commitErrors() map[string]func(before bool) {
	all := map[string]func(before bool){}
	for _, code := range []uint16{2013, 2006, 2003, 1105, 9001, 1927, 1290, 7777} {
		text := append([]byte{0xff}, byte(code), byte(code>>8))
		text = append(text, "#HY000Lost connection to MySQL server during query"...)
		answer := append([]byte{byte(len(text)), 0, 0, 1}, text...)
		all[fmt.Sprint(code)] = func(before bool) {
			hook := func(c *session.Conn, now bool) {
				if now == before {
					s.fault.Store(nil)
					c.Wire.(*dialtest.Conn).Answer(answer)
				}
			}
			s.fault.Store(&hook)
		}
	}
	return all
}

// TestConformance runs the suite on each server. Each test has a database of its own while it runs.
func TestConformance(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		backendtest.Run(t, (&databases{t: t, m: m}).take)
	})
}

// lockRow locks a row in an open transaction.
func lockRow(t *testing.T, m *testserver.MySQL, name, row string) (unlock func()) {
	c := connect(t, m, name)
	runSQL(t, c, "BEGIN", "SELECT 1 FROM "+row+" FOR UPDATE")
	return func() { runSQL(t, c, "ROLLBACK") }
}

// poor is a user with the rights of a sidecar.
func poor(t *testing.T, m *testserver.MySQL, database string, o Options) *backendtest.Poor {
	user := "poor_" + database[max(0, len(database)-20):]
	run := func(sql string) {
		t.Helper()
		if err := m.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	run("CREATE USER " + user + " IDENTIFIED BY 'x'")
	t.Cleanup(func() { run("DROP USER " + user) })
	run("GRANT SELECT ON " + database + ".test_clock TO " + user)
	run("GRANT SELECT ON " + database + ".qsidecar_meta TO " + user)
	for _, table := range ownTables {
		run("GRANT SELECT, INSERT, UPDATE, DELETE ON " + database + "." + table + " TO " + user)
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, "x")
	o.URL = u.String()
	return &backendtest.Poor{
		Backend: open(t, o),
		Revoke: func(rights, table string) {
			run("REVOKE " + rights + " ON " + database + ".qsidecar_" + table + " FROM " + user)
		},
		Grant: func(rights, table string) {
			run("GRANT " + rights + " ON " + database + ".qsidecar_" + table + " TO " + user)
		},
	}
}
