package sqlserver

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/sqlserver/migrate"
	"github.com/qsidecar/qsidecar/internal/testdocs"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// onReal calls f for each database of a real SQL Server that tests can use. If the address names the database master,
// these are two new ones, one with row versions and one without. Otherwise it is the named one. Without an address
// the test logs that it did not run.
func onReal(t *testing.T, f func(t *testing.T, url string)) {
	t.Helper()
	at := os.Getenv(envURL)
	if at == "" {
		if err := local.Note("SQL Server: not tested (there is no " + envURL + "), but for its emulation and the reading of its statements"); err != nil {
			t.Error(err)
		}
		t.Logf("%s DID NOT RUN: %s names no SQL Server, and none can be fetched", t.Name(), envURL)
		return
	}
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	if q.Get("database") != "master" {
		f(t, at)
		return
	}
	for name, rcsi := range map[string]string{"ReadCommitted": "OFF", "ReadCommittedSnapshot": "ON"} {
		t.Run(name, func(t *testing.T) {
			database := fmt.Sprintf("qsidecar_%s_%d", strings.ToLower(rcsi), time.Now().UnixNano())
			beside(t, at, "CREATE DATABASE "+database)
			beside(t, at, "ALTER DATABASE "+database+" SET READ_COMMITTED_SNAPSHOT "+rcsi)
			t.Cleanup(func() {
				beside(t, at, "ALTER DATABASE "+database+" SET SINGLE_USER WITH ROLLBACK IMMEDIATE")
				beside(t, at, "DROP DATABASE "+database)
			})
			q := u.Query()
			q.Set("database", database)
			of := *u
			of.RawQuery = q.Encode()
			f(t, of.String())
		})
	}
}

// beside runs batches on another connection, as sqlcmd does.
func beside(t testing.TB, url string, batches ...string) {
	t.Helper()
	db, err := sql.Open("sqlserver", url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, b := range batches {
		if _, err := db.ExecContext(context.WithoutCancel(t.Context()), b); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
	}
}

// cable is a Dialer whose connections can be cut.
type cable struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cable) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conns = append(c.conns, conn)
	}
	return conn, err
}

func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close() // it can be closed already
	}
	c.conns = nil
}

// setClock stops the database's clock at an instant.
func setClock(t testing.TB, s *Store, url string, now time.Time) {
	t.Helper()
	name := quoteName(s.o.Schema) + ".qsidecar_now"
	body := fmt.Sprintf("FUNCTION %s() RETURNS datetime2(6) WITH SCHEMABINDING AS BEGIN RETURN CONVERT(datetime2(6), '%s', 126); END", name, instant(now))
	if s.server.babelfish { // it cannot alter one
		beside(t, url, "DROP FUNCTION "+name, "CREATE "+body)
		return
	}
	beside(t, url, "ALTER "+body)
}

// TestConformance runs the conformance suite on a real SQL Server, Azure SQL or Babelfish.
func TestConformance(t *testing.T) {
	onReal(t, func(t *testing.T, url string) {
		var n atomic.Int64
		backendtest.Run(t, func(t *testing.T) *backendtest.Database {
			wire := &cable{}
			o := Options{URL: url, Schema: fmt.Sprintf("test_%d", n.Add(1)), dialer: wire}
			s := open(t, o)
			if n.Load() == 1 {
				if err := local.Note("SQL Server " + s.server.version); err != nil {
					t.Error(err)
				}
			}
			var mu sync.Mutex
			now := time.Now()
			shift := func(d time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				now = now.Add(d)
				setClock(t, s, url, now)
			}
			shift(0)
			lock := func(table, where string) (unlock func()) {
				do, end := otherTransaction(t, url)
				if err := do("SELECT 1 FROM " + quoteName(s.o.Schema) + "." + table + " WITH (UPDLOCK, ROWLOCK) WHERE " + where); err != nil {
					t.Fatal(err)
				}
				return end
			}
			return &backendtest.Database{
				Backend:      s,
				OpenAnother:  func() backends.Backend { return open(t, o) },
				AdvanceClock: shift,
				LoseCommit:   func(before bool) { s.loseCommit(before, wire.cut) },
				BeforeCommit: s.beforeCommit,
				RefuseJobs: func(queue, reason string) {
					beside(t, url, fmt.Sprintf(`CREATE TRIGGER %[1]s.refuse ON %[1]s.qsidecar_jobs AFTER INSERT AS
BEGIN
  IF EXISTS (SELECT 1 FROM inserted AS i WHERE i.queue = %[2]s)
    THROW 50001, %[3]s, 1;
END`, quoteName(s.o.Schema), quoteText(queue), quoteText(reason)))
				},
				RefuseChanges: func(r backendtest.Refusal) (allow func()) {
					beside(t, url, fmt.Sprintf(`CREATE TRIGGER %[1]s.refuse_changes ON %[1]s.qsidecar_jobs AFTER %[2]s AS
BEGIN
  IF EXISTS (SELECT 1 FROM deleted AS OLD LEFT JOIN inserted AS NEW ON NEW.id = OLD.id WHERE %[3]s)
    THROW 50001, %[4]s, 1;
END`, quoteName(s.o.Schema), strings.Join(r.On(), ", "), r.When(quoteText), quoteText(r.Reason)))
					return func() { beside(t, url, fmt.Sprintf(`DROP TRIGGER %s.refuse_changes`, quoteName(s.o.Schema))) }
				},
				InsertJob: func(queue, payload string) { beside(t, url, plainInsert(s, queue, payload)) },
				LockRow:   func(id string) func() { return lock("qsidecar_jobs", "id = "+id) },
				LockGate:  func(queue string) func() { return lock("qsidecar_gates", "queue = "+quoteText(queue)) },
				LockStripe: func(queue, group string) func() {
					_, stripes := core.StripesOf([]backends.Group{{Queue: queue, Name: group}})
					return lock("qsidecar_stripes", fmt.Sprintf("queue = %s AND stripe = %d", quoteText(queue), stripes[0]))
				},
				AdmitsInCommits: true,
				Application: func() (func(queue, key string) error, func()) {
					do, end := otherTransaction(t, url)
					return func(queue, key string) error {
						keys, name := quoteName(s.o.Schema)+".qsidecar_keys", "CONVERT(varbinary(510), "+quoteText(key)+")"
						return do("UPDATE " + keys + " SET state = state WHERE queue = " + quoteText(queue) + " AND name = " + name + ";\nIF @@ROWCOUNT = 0\n" +
							"  INSERT INTO " + keys + " (queue, name, job, expires_at, state) VALUES (" + quoteText(queue) + ", " + name + ", 0, SYSUTCDATETIME(), 'deleted');")
					}, end
				},
			}
		})
	})
}

// otherTransaction returns another program. do runs a statement in its transaction, and begins one if there is none. end
// commits.
func otherTransaction(t *testing.T, url string) (do func(text string) error, end func()) {
	db, err := sql.Open("sqlserver", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	var tx *sql.Tx
	do = func(text string) (err error) {
		if tx == nil {
			if tx, err = db.BeginTx(t.Context(), nil); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(t.Context(), text)
		return err
	}
	return do, func() {
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		tx = nil
	}
}

// plainInsert is the documented statement. Before SQL Server 2019 it has the payload's bytes.
func plainInsert(s *Store, queue, payload string) string {
	value := "CONVERT(varbinary(max), CONVERT(varchar(max), " + quoteText(payload) + " COLLATE Latin1_General_100_CI_AS_SC_UTF8))"
	if s.server.major < 15 || s.server.babelfish {
		value = "0x" + hex.EncodeToString([]byte(payload))
	}
	return fmt.Sprintf("INSERT INTO %s.qsidecar_jobs (queue, payload) VALUES (%s, %s)", quoteName(s.o.Schema), quoteText(queue), value)
}

// TestOnSQLServer shows what only a real server can show.
func TestOnSQLServer(t *testing.T) {
	onReal(t, func(t *testing.T, url string) {
		t.Run("Examine", func(t *testing.T) {
			s := open(t, Options{URL: url, Schema: "examined"})
			found, err := NewEngine(s).Examine(t.Context(), []backends.Policy{{Queue: "q", MaxAttempts: 3}})
			if err != nil {
				t.Fatal(err)
			}
			planned := false
			for _, f := range found {
				t.Logf("%s %s: %s %s", f.Severity, f.Topic, f.Text, f.Fix)
				if f.Severity == backends.SeverityError || strings.Contains(f.Text, "could not be checked") {
					t.Errorf("%s: %s", f.Topic, f.Text)
				}
				planned = planned || f.Topic == "plan"
			}
			if !planned && !s.server.babelfish {
				t.Error("there is no word of the plan")
			}
		})
		t.Run("ManyMakeTheTables", func(t *testing.T) { manyMakeTheTables(t, Options{URL: url, Schema: "at_once"}) })
		t.Run("MigrationsByHand", func(t *testing.T) {
			beside(t, url, "IF DATABASE_PRINCIPAL_ID('by_hand') IS NULL EXEC (N'CREATE ROLE by_hand')")
			for range 2 { // existing objects are left alone
				beside(t, url, migrate.Batches(migrate.SQL("by_hand", "by_hand", 0))...)
			}
			open(t, Options{URL: url, Schema: "by_hand"})
		})
		t.Run("DocumentedStatements", func(t *testing.T) {
			s := open(t, Options{URL: url})
			beside(t, url, testdocs.CodeBlocks(t, "README.md", "## Roles", "sql")...)
			documentedInserts(t, s, func(sql string) { beside(t, url, sql) })
		})
		t.Run("PlainInsertLater", func(t *testing.T) {
			s := open(t, Options{URL: url, Schema: "plain"})
			plainInsertLater(t, s, func(sql string) { beside(t, url, sql) })
		})
	})
}

// TestWorkflow shows that the workflow's command runs each test that needs a server.
func TestWorkflow(t *testing.T) {
	t.Parallel()
	workflow, err := os.ReadFile("../../.github/workflows/ci.yml")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`go test .* -run '([^']+)' \./backends/sqlserver/`).FindSubmatch(workflow)
	if command == nil {
		t.Fatal("the workflow has no command for this package")
	}
	run, err := regexp.Compile(string(command[1]))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`func (Test\w+)\(t \*testing\.T\) \{\n\tonReal\(`).FindAllSubmatch(text, -1) {
			found++
			if !run.Match(m[1]) {
				t.Errorf("-run '%s' leaves out %s", run, m[1])
			}
		}
	}
	if found == 0 {
		t.Error("no test needs a server")
	}
}

// manyMakeTheTables shows that several sidecars can start at the same time.
func manyMakeTheTables(t *testing.T, o Options) {
	var wg sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		wg.Go(func() {
			s, err := Open(t.Context(), o)
			if err == nil {
				err = s.Close()
			}
			errs[i] = err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// plainInsertLater shows that a job with a future run_at is scheduled however it was inserted,
// and that one whose run_at has passed becomes ready.
func plainInsertLater(t *testing.T, s *Store, exec func(sql string)) {
	t.Helper()
	for queue, at := range map[string]string{"later": "2999-01-31T08:00:00", "passed": "2001-01-31T08:00:00"} {
		exec(fmt.Sprintf("INSERT INTO %s.qsidecar_jobs (queue, run_at) VALUES ('%s', '%s')", quoteName(s.o.Schema), queue, at))
	}
	if r, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10}); err != nil || r.Promoted != 1 {
		t.Errorf("%+v, %v; want the one promoted whose time has passed", r, err)
	}
	for queue, want := range map[string]backends.QueueStats{"later": {Scheduled: 1}, "passed": {Ready: 1}} {
		st, err := s.Stats(t.Context(), queue)
		if err != nil || len(st) != 1 || st[0].Scheduled != want.Scheduled || st[0].Ready != want.Ready {
			t.Errorf("%s: %+v, %v", queue, st, err)
		}
	}
	v, err := s.Peek(t.Context(), backends.Peek{Queue: "later", State: backends.StateScheduled, Max: 1})
	if want := time.Date(2999, 1, 31, 8, 0, 0, 0, time.UTC); err != nil || len(v) != 1 || !v[0].RunAt.Equal(want) {
		t.Fatalf("%+v, %v", v, err)
	}
	retry := backends.Command{Kind: backends.Retry, Queue: "later", IDs: []string{v[0].ID}, Unchanged: func(jobs []backends.JobState) {
		if len(jobs) != 1 || jobs[0].State != backends.StateScheduled {
			t.Errorf("a retry left %+v as they are, want one that is scheduled", jobs)
		}
	}}
	if n, _, err := s.Command(t.Context(), retry); n != 0 || err != nil {
		t.Errorf("%d jobs retried, %v", n, err)
	}
}

// documentedInserts runs the INSERTs of README.md and checks their jobs.
func documentedInserts(t *testing.T, s *Store, exec func(sql string)) {
	t.Helper()
	within := withinNow()
	for _, sql := range testdocs.CodeBlocks(t, "README.md", "## A plain INSERT is an enqueue", "sql") {
		exec(sql)
	}
	views := map[backends.State][]backends.View{}
	for _, state := range []backends.State{backends.StateReady, backends.StateScheduled} {
		v, err := s.Peek(t.Context(), backends.Peek{Queue: "mail", State: state, Max: 10})
		if err != nil || len(v) != 1 {
			t.Fatalf("%s: %+v, %v; want one", state, v, err)
		}
		views[state] = v
	}
	if got := string(views[backends.StateReady][0].Payload); got != `{"to": "ada@example.com"}` {
		t.Errorf("the first job's payload is %q", got)
	}
	j := views[backends.StateScheduled][0]
	if string(j.Payload) != `{"file": "C:\\temp"}` || j.Priority != 5 || j.MaxAttempts != 3 || !maps.Equal(j.Headers, map[string]string{"trace": "4bf92f"}) {
		t.Errorf("the second job is %+v", j)
	}
	if !within(j.RunAt, time.Hour) {
		t.Errorf("it is due at %v, want in an hour", j.RunAt)
	}
}

// withinNow returns a check that an instant is so long after one between this call and the
// check's. The server's clock can be a minute off.
func withinNow() func(at time.Time, after time.Duration) bool {
	began := time.Now().Add(-time.Minute)
	return func(at time.Time, after time.Duration) bool {
		ends := time.Now().Add(time.Minute)
		return !at.Before(began.Add(after)) && !at.After(ends.Add(after))
	}
}
