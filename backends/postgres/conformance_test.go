package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/dial/dialtest"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// servers are the servers of this run by major version. poolers are the poolers in front of
// each of them.
var (
	servers = map[string]*testserver.Postgres{}
	poolers = map[*testserver.Postgres]*testserver.Pooler{}
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	for _, version := range testserver.Versions() {
		p, err := testserver.StartPostgres(context.Background(), version, testserver.Options{Settings: map[string]string{"max_prepared_transactions": "10"}})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			if err := p.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		if err := makeTemplate(context.Background(), p); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			if err := p.Exec(context.Background(), "DROP DATABASE "+template); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		b, err := testserver.StartPgBouncer(context.Background(), p, 6)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			if err := b.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		fmt.Println("testing on PostgreSQL", p.Version)
		servers[version], poolers[p] = p, b
	}
	code := m.Run()
	// The servers' own goroutines wait for the servers to end.
	if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/qsidecar/qsidecar/internal/testserver/local.guard.func1")); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// everywhere runs a test on each server.
func everywhere(t *testing.T, f func(t *testing.T, p *testserver.Postgres)) {
	t.Parallel()
	inTurn(t, func(t *testing.T, p *testserver.Postgres) {
		t.Parallel()
		f(t, p)
	})
}

// inTurn runs a test on one server after the other. Unless it is parallel, no other test runs beside it.
func inTurn(t *testing.T, f func(t *testing.T, p *testserver.Postgres)) {
	for version, p := range servers {
		t.Run("PostgreSQL"+version, func(t *testing.T) { f(t, p) })
	}
}

// loseCommit breaks the connection at the next commit.
func (s *Store) loseCommit(before bool) {
	hook := func(c *pgx.Conn, now bool) {
		if now == before {
			s.fault.Store(nil)
			c.PgConn().Conn().Close()
		}
	}
	s.fault.Store(&hook)
}

// beforeCommit calls f before the next COMMIT.
func (s *Store) beforeCommit(f func()) {
	hook := func(_ *pgx.Conn, before bool) {
		if before {
			s.fault.Store(nil)
			f()
		}
	}
	s.fault.Store(&hook)
}

// commitErrors are what poolers answer a COMMIT with, if they have lost the server. PgBouncer sends neither an unlocalized severity nor
// always the same SQLSTATE. Others send both.
func (s *Store) commitErrors() map[string]func(before bool) {
	all := map[string]func(before bool){}
	for _, code := range []string{"08006", "08P01", "08007", "40003", "57P01", "57P03", "57014", "58000", "53300", "XX000"} {
		for _, severity := range []string{"ERROR", "FATAL", ""} {
			if severity != "ERROR" && code != "08P01" {
				continue
			}
			answer := "SERROR\x00"
			if severity != "" {
				answer += "V" + severity + "\x00"
			}
			answer += "C" + code + "\x00Mserver closed the connection unexpectedly\x00\x00"
			answer = "E" + string(binary.BigEndian.AppendUint32(nil, uint32(4+len(answer)))) + answer + "Z\x00\x00\x00\x05I"
			all[severity+" "+code] = func(before bool) {
				hook := func(c *pgx.Conn, now bool) {
					if now == before {
						s.fault.Store(nil)
						c.PgConn().Conn().(*dialtest.Conn).Answer([]byte(answer))
					}
				}
				s.fault.Store(&hook)
			}
		}
	}
	return all
}

// soak makes each server run everything.
var soak = os.Getenv("QSIDECAR_SOAK") != ""

// TestConformance runs the suite on each server, and in databases whose owner chose another default isolation. Unless this is a
// soak, the newest server has the usual isolation and the oldest has another one, because each transaction names its own. The oldest one runs
// the usual isolation through its pooler. A short run has only the usual isolation. TestHostileSettingsOfARole of
// package adopted changes this setting too.
func TestConformance(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		for isolation, on := range map[string]string{"read committed": "18", "repeatable read": "13", "serializable": "all, in a soak"} {
			if testing.Short() && isolation != "read committed" || !soak && !strings.HasPrefix(p.Version, on) && os.Getenv(testserver.EnvURL) == "" {
				continue
			}
			url := p.Database(t)
			must(t, url, fmt.Sprintf(`DO $$BEGIN EXECUTE format('ALTER DATABASE %%I SET default_transaction_isolation = %%L', current_database(), %s); END$$`, literal(isolation)))
			t.Run(isolation, func(t *testing.T) { backendtest.Run(t, newSchemas(t, url).take) })
		}
	})
}

// TestConformanceThroughAPooler runs the suite through PgBouncer in transaction mode. By the Stores' local clocks all queries
// are slow: maintenance and claims then search only parts of the tables, and the tests hold nevertheless.
func TestConformanceThroughAPooler(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		if !soak && strings.HasPrefix(p.Version, "18") {
			return // the other server runs it
		}
		url, err := poolers[p].URL(p.Database(t))
		if err != nil {
			t.Fatal(err)
		}
		if s := open(t, Options{URL: url}); !s.pooled {
			t.Fatal("the pooler was not noticed")
		}
		x := newSchemas(t, url)
		x.slow = true
		backendtest.Run(t, x.take)
	})
}

// schemas are the suite's schemas in one database. Each test has its own schema while it runs. A test that passes leaves
// its schema and its sessions to a later test, because creating new ones takes longer than most tests.
type schemas struct {
	url  string
	slow bool // between two readings of a Store's clock 60 ms pass, which is a slow query
	mu   sync.Mutex
	all  []*schema
	free []*schema
}

func newSchemas(t *testing.T, url string) *schemas {
	p := &schemas{url: url}
	t.Cleanup(func() {
		for _, x := range p.all {
			x.close(t)
		}
	})
	return p
}

// schema is one schema with its handles. Its clock stands still, except when a test
// shifts it.
type schema struct {
	o       Options
	slow    bool
	stores  []*Store
	used    int       // how many of stores the present test uses
	beside  *pgx.Conn // a connection that belongs to no Store
	refuses bool
}

// take returns a schema as the suite's database for a test.
func (p *schemas) take(t *testing.T) *backendtest.Database {
	x := p.get(t)
	x.o.wrap = dialtest.Through
	s := x.store(t)
	t.Cleanup(func() {
		// Statements that a fault left behind can still be running.
		if !t.Failed() && !strings.Contains(t.Name(), "/Faults/") && !strings.Contains(t.Name(), "/Emptied") && x.clean(t) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.free = append(p.free, x)
		}
	})
	var poor func() *backendtest.Poor
	if !p.slow { // the pooler's login is another one
		poor = func() *backendtest.Poor { return x.poor(t) }
	}
	return &backendtest.Database{
		Backend:     s,
		OpenAnother: func() backends.Backend { return x.store(t) },
		AdvanceClock: func(d time.Duration) {
			x.must(t, fmt.Sprintf(`UPDATE {s}.test_clock SET now = now + %d * interval '1 microsecond'`, d.Microseconds()))
		},
		LoseCommit:   s.loseCommit,
		BeforeCommit: s.beforeCommit,
		CommitErrors: s.commitErrors(),
		RemoveTable: func(table string) func() {
			x.must(t, "ALTER TABLE {s}.qsidecar_"+table+" RENAME TO away")
			return func() { x.must(t, "ALTER TABLE {s}.away RENAME TO qsidecar_"+table) }
		},
		EmptyTable:  func(table string) { x.must(t, "TRUNCATE {s}.qsidecar_"+table) },
		SmallTables: []string{"meta", "failures", "keys", "sidecars", "queues", "gates", "capped", "cancelled", "progress", "pending", "schedules", "batches", "batch_members", "batch_notes", "stripes", "admissions", "history", "epoch"},
		RefuseJobs: func(queue, reason string) {
			x.refuses = true
			x.must(t, fmt.Sprintf(`CREATE FUNCTION {s}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION '%%', %s; END$$;
				CREATE TRIGGER refuse BEFORE INSERT ON {s}.qsidecar_jobs FOR EACH ROW WHEN (NEW.queue = %s) EXECUTE FUNCTION {s}.refuse()`,
				literal(reason), literal(queue)))
		},
		RefuseChanges: func(r backendtest.Refusal) (allow func()) {
			x.refuses = true
			x.must(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION {s}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION '%%', %s; END$$;
				CREATE TRIGGER refuse BEFORE %s ON {s}.qsidecar_jobs FOR EACH ROW WHEN (%s) EXECUTE FUNCTION {s}.refuse()`,
				literal(r.Reason), strings.Join(r.On(), " OR "), r.When(literal)))
			return func() { x.must(t, "DROP TRIGGER refuse ON {s}.qsidecar_jobs") }
		},
		InsertJob: func(queue, payload string) {
			x.must(t, x.plainInsert(queue, "", payload))
		},
		Producer:        func() backendtest.Producer { return x.producer(t) },
		LockRow:         func(id string) func() { return x.lockRow(t, "qsidecar_jobs WHERE id = "+id) },
		LockGate:        func(queue string) func() { return x.lockRow(t, "qsidecar_gates WHERE queue = '"+queue+"'") },
		LockTable:       func(table string) func() { return x.lockTable(t, table) },
		Poor:            poor,
		AdmitsInCommits: true,
		LockStripe: func(queue, group string) func() {
			_, stripes := core.StripesOf([]backends.Group{{Queue: queue, Name: group}})
			return x.lockRow(t, fmt.Sprintf("qsidecar_stripes WHERE queue = '%s' AND stripe = %d", queue, stripes[0]))
		},
		Application:   func() (func(queue, key string) error, func()) { return x.application(t) },
		InvalidValues: oddValues,
		InsertRow: func(column, expression string, old bool) error {
			sql := backendtest.InsertSQL("{s}.qsidecar_jobs", column, expression)
			if old {
				sql = "ALTER TABLE {s}.qsidecar_jobs DROP CONSTRAINT qsidecar_usable;" + sql + "; ALTER TABLE {s}.qsidecar_jobs ADD " + usable + " NOT VALID"
			}
			_, err := x.beside.Exec(t.Context(), in(x.o.Schema, sql), pgx.QueryExecModeSimpleProtocol)
			return err
		},
	}
}

// usable is the constraint that rows can be older than, if a version adds it.
var usable = regexp.MustCompile(`(?s)CONSTRAINT qsidecar_usable CHECK.*?65536\)`).FindString(migrate.Fresh(migrate.Latest)) + ")"

// get returns a free schema, or a new one.
func (p *schemas) get(t *testing.T) *schema {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		x := p.free[n-1]
		p.free = p.free[:n-1]
		p.mu.Unlock()
		return x
	}
	x := &schema{o: Options{URL: p.url, Schema: fmt.Sprintf("test_%d", len(p.all)+1)}, slow: p.slow}
	p.all = append(p.all, x)
	p.mu.Unlock()
	var err error
	if x.beside, err = pgx.Connect(t.Context(), p.url); err != nil {
		t.Fatal(err)
	}
	x.must(t, migrate.Fresh(migrate.Latest)+`CREATE TABLE {s}.test_clock (now timestamptz);
		INSERT INTO {s}.test_clock VALUES (clock_timestamp());
		CREATE OR REPLACE FUNCTION {s}.qsidecar_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT now FROM {s}.test_clock'`)
	return x
}

// store returns the next handle that the test doesn't use yet.
func (x *schema) store(t *testing.T) *Store {
	if x.used == len(x.stores) {
		s, err := Open(t.Context(), x.o)
		if err != nil {
			t.Fatal(err)
		}
		if x.slow {
			var readings atomic.Int64
			began := time.Now()
			s.LocalTime = func() time.Time { return began.Add(time.Duration(readings.Add(1)) * 60 * time.Millisecond) }
		}
		x.stores = append(x.stores, s)
	}
	x.used++
	return x.stores[x.used-1]
}

func (x *schema) must(t *testing.T, sql string) {
	t.Helper()
	if _, err := x.beside.Exec(context.WithoutCancel(t.Context()), in(x.o.Schema, sql), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (x *schema) plainInsert(queue, group string, payloads ...string) string {
	var rows []string
	for _, p := range payloads {
		rows = append(rows, "("+literal(queue)+", "+literal(p)+", nullif("+literal(group)+", ''))")
	}
	return in(x.o.Schema, `INSERT INTO {s}.qsidecar_jobs (queue, payload, group_name) VALUES `+strings.Join(rows, ", "))
}

// lockRow locks the row of a job in a transaction of its own, until unlock is called or the test ends.
func (x *schema) lockRow(t *testing.T, row string) (unlock func()) {
	c := x.connect(t)
	if _, err := c.Exec(t.Context(), in(x.o.Schema, "BEGIN; SELECT FROM {s}."+row+" FOR UPDATE"), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := c.Exec(t.Context(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
	}
}

// lockTable locks a whole table.
func (x *schema) lockTable(t *testing.T, table string) (unlock func()) {
	c := x.connect(t)
	if _, err := c.Exec(t.Context(), in(x.o.Schema, "BEGIN; LOCK TABLE {s}.qsidecar_"+table), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := c.Exec(t.Context(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
	}
}

// application returns a program in whose transaction lock locks keys as the Python client's sql.enqueue does.
func (x *schema) application(t *testing.T) (lock func(queue, key string) error, end func()) {
	c := x.connect(t)
	run := func(sql string, args ...any) error {
		_, err := c.Exec(t.Context(), in(x.o.Schema, sql), append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
		return err
	}
	lock = func(queue, key string) error {
		if c.PgConn().TxStatus() == 'I' {
			if err := run("BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
				return err
			}
		}
		return run("INSERT INTO {s}.qsidecar_keys AS k (queue, key, job, expires_at, state) VALUES ($1, $2, 0, clock_timestamp(), 'deleted') "+
			"ON CONFLICT (queue, key) DO UPDATE SET job = k.job", queue, key)
	}
	return lock, func() {
		if err := run("COMMIT"); err != nil {
			t.Error(err)
		}
	}
}

// connect returns a connection of its own, which the end of the test closes.
func (x *schema) connect(t *testing.T) *pgx.Conn {
	c, err := pgx.Connect(t.Context(), x.o.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// producer returns another program with its own connection.
func (x *schema) producer(t *testing.T) backendtest.Producer {
	c := x.connect(t)
	run := func(sql string) {
		t.Helper()
		if _, err := c.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%.100s: %v", sql, err)
		}
	}
	return backendtest.Producer{
		Begin:  func() { run("BEGIN ISOLATION LEVEL READ COMMITTED") },
		Insert: func(queue, group string, payloads []string, _ bool) { run(x.plainInsert(queue, group, payloads...)) },
		End: func(commit bool) {
			if commit {
				run("COMMIT")
			} else {
				run("ROLLBACK")
			}
		},
	}
}

// clean resets the schema, for handles that have no state about it.
func (x *schema) clean(t *testing.T) bool {
	sql := `DELETE FROM {s}.qsidecar_jobs; DELETE FROM {s}.qsidecar_failures; DELETE FROM {s}.qsidecar_keys;
		DELETE FROM {s}.qsidecar_queues; DELETE FROM {s}.qsidecar_gates; DELETE FROM {s}.qsidecar_capped; DELETE FROM {s}.qsidecar_cancelled; DELETE FROM {s}.qsidecar_progress; DELETE FROM {s}.qsidecar_pending; DELETE FROM {s}.qsidecar_stripes; DELETE FROM {s}.qsidecar_schedules; DELETE FROM {s}.qsidecar_batches; DELETE FROM {s}.qsidecar_batch_members; DELETE FROM {s}.qsidecar_batch_notes; DELETE FROM {s}.qsidecar_admissions; DELETE FROM {s}.qsidecar_history; DELETE FROM {s}.qsidecar_sidecars; UPDATE {s}.test_clock SET now = clock_timestamp();`
	if x.refuses {
		sql, x.refuses = sql+`DROP FUNCTION {s}.refuse() CASCADE;`, false
	}
	x.must(t, sql)
	x.used = 0
	for _, s := range x.stores {
		s.Forget()
		if s.Life().Err() != nil {
			return false // the test closed it
		}
	}
	return true
}

func (x *schema) close(t *testing.T) {
	if x.beside == nil {
		return
	}
	err := x.beside.Close(context.Background())
	for _, s := range x.stores {
		err = errors.Join(err, s.Close())
	}
	if err != nil {
		t.Errorf("close: %v", err)
	}
}

// poor is a role with the rights of a sidecar. Its Store is a new one.
func (x *schema) poor(t *testing.T) *backendtest.Poor {
	c, err := pgx.ParseConfig(x.o.URL)
	if err != nil {
		t.Fatal(err)
	}
	role := "poor_" + c.Database + "_" + x.o.Schema
	x.must(t, fmt.Sprintf("CREATE ROLE %[1]s LOGIN; GRANT USAGE ON SCHEMA {s} TO %[1]s; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {s} TO %[1]s; GRANT USAGE ON ALL SEQUENCES IN SCHEMA {s} TO %[1]s", role))
	t.Cleanup(func() { x.must(t, fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", role)) })
	o := x.o
	o.URL, o.wrap = fmt.Sprintf("host=%s port=%d dbname=%s user=%s", c.Host, c.Port, c.Database, role), nil
	s := open(t, o)
	return &backendtest.Poor{
		Backend: s,
		Revoke:  func(rights, table string) { x.must(t, "REVOKE "+rights+" ON {s}.qsidecar_"+table+" FROM "+role) },
		Grant:   func(rights, table string) { x.must(t, "GRANT "+rights+" ON {s}.qsidecar_"+table+" TO "+role) },
	}
}
