package adopted_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/backends/postgres"
	pgdiagnose "github.com/qsidecar/qsidecar/backends/postgres/diagnose"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// server is the newest PostgreSQL.
var server *testserver.Postgres

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	versions := testserver.Versions()
	// The start of sessions is most of the cost of these tests.
	settings := map[string]string{"shared_buffers": "32MB", "jit": "off", "autovacuum": "off"}
	p, err := testserver.StartPostgres(context.Background(), versions[len(versions)-1], testserver.Options{Settings: settings})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := p.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	server = p
	stop, err := startMySQL()
	defer stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/qsidecar/qsidecar/internal/testserver/local.guard.func1")); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

const me backends.Identity = 1 << 63

// sidecarTimeout is longer than any test takes: the databases' clocks go on.
const sidecarTimeout = 100 * time.Hour

// kit is a database with an adopted table.
type kit struct {
	*testing.T
	*adopted.Store
	url     string
	c       *pgx.Conn // nil: it is another engine
	db      *sql.DB   // of another engine
	conn    *sql.Conn
	counted atomic.Uint64
	table   mapping.Table // of the queue q, for tests that adopt it again

	reopen func() backends.Engine
}

func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
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

// newKit runs the owner's DDL and adopts its tables.
func newKit(t *testing.T, ddl string, tables map[string]mapping.Table) *kit {
	t.Helper()
	url := urlOf(onPostgres.get(t))
	k := &kit{T: t, url: url, c: connect(t, url)}
	k.sql(ddl)
	k.reopen = func() backends.Engine {
		engine, err := postgres.Open(t.Context(), postgres.Options{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		return pgdiagnose.New(engine)
	}
	k.Store = k.reopened(tables)
	k.heartbeat(me, backends.HeartbeatJoin, sidecarTimeout)
	return k
}

func (k *kit) heartbeat(sidecar backends.Identity, kind backends.HeartbeatKind, lease time.Duration) {
	k.Helper()
	if _, err := k.Heartbeat(k.Context(), backends.Heartbeat{Sidecar: sidecar, Kind: kind, Timeout: lease}); err != nil {
		k.Fatal(err)
	}
}

// sql runs the owner's own statements.
func (k *kit) sql(text string) {
	k.Helper()
	var err error
	if k.c != nil {
		_, err = k.c.Exec(k.Context(), text)
	} else {
		_, err = k.conn.ExecContext(k.Context(), text)
	}
	if err != nil {
		k.Fatalf("%s: %v", text, err)
	}
}

// sqlElsewhere runs a statement on a connection of its own.
func (k *kit) sqlElsewhere(text string) {
	k.Helper()
	var err error
	if k.c != nil {
		_, err = connect(k.T, k.url).Exec(k.Context(), text)
	} else {
		_, err = k.db.ExecContext(k.Context(), text)
	}
	if err != nil {
		k.Fatalf("%s: %v", text, err)
	}
}

// another returns a function that queries on a connection of its own.
func (k *kit) another() func(query string) ([]string, error) {
	k.Helper()
	if k.c == nil {
		conn, err := k.db.Conn(k.Context())
		if err != nil {
			k.Fatal(err)
		}
		closed(k.T, conn)
		return func(query string) ([]string, error) { return texts(context.Background(), conn, query) }
	}
	c := connect(k.T, k.url)
	return func(query string) ([]string, error) {
		rows, err := c.Query(context.Background(), query)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[string])
	}
}

// wantRows compares the rows of a query, a text each, with the expected ones.
func (k *kit) wantRows(query string, want ...string) {
	k.Helper()
	got, err := k.rows(query)
	if err != nil {
		k.Fatalf("%s: %v", query, err)
	}
	if d := cmp.Diff(want, got); d != "" && len(want)+len(got) > 0 {
		k.Errorf("%s (-want +got):\n%s", query, d)
	}
}

// reopened opens another Store of the database.
func (k *kit) reopened(tables map[string]mapping.Table) *adopted.Store {
	k.Helper()
	engine := k.reopen()
	engine.(interface{ NothingIsSlow() }).NothingIsSlow()
	s, err := adopted.New(k.Context(), engine, tables)
	if err != nil {
		k.Fatal(errors.Join(err, engine.Close()))
	}
	closed(k.T, s)
	return s
}

// rows are the rows of a query, a text each.
func (k *kit) rows(query string) ([]string, error) {
	if k.c == nil {
		return texts(k.Context(), k.conn, query)
	}
	rows, err := k.c.Query(k.Context(), query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (k *kit) slot(lease time.Duration) backends.Slot {
	return backends.Slot{Token: backends.Token{Sidecar: me, Number: k.counted.Add(1)}, Lease: lease, Worker: "w"}
}

func policy(queue string) backends.Policy {
	return backends.Policy{Queue: queue, MaxAttempts: 3, Backoff: time.Hour, BackoffMax: time.Hour}
}

// claim claims up to n jobs of the queue.
func (k *kit) claim(queue string, n int) []backends.Job {
	k.Helper()
	c := backends.Claim{Queues: []backends.Policy{policy(queue)}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}
	for range n {
		c.Slots = append(c.Slots, k.slot(0))
	}
	return k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}}).Claims[0].Jobs
}

func (k *kit) one(queue string) backends.Job {
	k.Helper()
	jobs := k.claim(queue, 1)
	if len(jobs) != 1 {
		k.Fatalf("%d jobs, want 1", len(jobs))
	}
	return jobs[0]
}

func (k *kit) commit(b backends.CommitContent) backends.Results {
	k.Helper()
	r, err := k.Commit(k.Context(), b)
	if err != nil {
		k.Fatal(err)
	}
	if len(r.Writes) != len(b.Writes) || len(r.Claims) != len(b.Claims) {
		k.Fatalf("%d writes and %d claims were answered with %d and %d", len(b.Writes), len(b.Claims), len(r.Writes), len(r.Claims))
	}
	backendtest.CheckFailedCounts(k, b, r)
	return r
}

// write commits one write and checks how many leases were lost.
func (k *kit) write(w backends.Write, lost int) backends.WriteResult {
	k.Helper()
	r := k.commit(backends.CommitContent{Writes: []backends.Write{w}}).Writes[0]
	if _, alone := errors.AsType[*backends.LockedError](r.Err); alone { // on a busy machine a table can be slow
		r = k.commit(backends.CommitContent{Writes: []backends.Write{w}, WaitForLocks: true}).Writes[0]
	}
	if len(r.Lost) != lost || r.Err != nil {
		k.Errorf("%T: %d leases were lost, want %d; %v", w, len(r.Lost), lost, r.Err)
	}
	return r
}

func (k *kit) maintain(s backends.Maintenance) backends.MaintenanceResult {
	k.Helper()
	s.Limit = 100
	r, err := k.Maintain(k.Context(), s)
	if err != nil {
		k.Fatal(err)
	}
	backendtest.CheckReapedCounts(k, r)
	return r
}

func leases(jobs ...backends.Job) (l []backends.Lease) {
	for i := range jobs {
		l = append(l, jobs[i].Lease())
	}
	return l
}
