package postgres

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// servers are those of this run, by major version, and poolers what stands before
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
	// The servers' own goroutines wait for their ends.
	if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/qsidecar/qsidecar/internal/testserver.guard.func1")); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// everywhere runs a test on each server.
func everywhere(t *testing.T, f func(t *testing.T, p *testserver.Postgres)) {
	t.Parallel()
	for version, p := range servers {
		t.Run("PostgreSQL"+version, func(t *testing.T) {
			t.Parallel()
			f(t, p)
		})
	}
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

// exec runs SQL beside the Store, like psql.
func exec(t testing.TB, url, sql string) error {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	_, err = c.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

func must(t testing.TB, url, sql string) {
	t.Helper()
	if err := exec(t, url, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// database is what the suite may do to a database at url.
func database(t *testing.T, url string, o Options) *backendtest.Database {
	o.URL = url
	s := open(t, o)
	// The clock stands still but for the test's shifts.
	var mu sync.Mutex
	now := time.Now()
	shift := func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(d)
		must(t, url, fmt.Sprintf(`CREATE OR REPLACE FUNCTION %s.qsidecar_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
			AS $$SELECT timestamptz '%s'$$`, o.Schema, now.UTC().Format("2006-01-02 15:04:05.000000+00")))
	}
	shift(0)
	return &backendtest.Database{
		Backend:    s,
		Again:      func() backends.Backend { return open(t, o) },
		Shift:      shift,
		LoseCommit: s.loseCommit,
		Refuse: func(queue, reason string) {
			must(t, url, fmt.Sprintf(`CREATE FUNCTION %[1]s.refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION '%%', %[2]s; END$$;
				CREATE TRIGGER refuse BEFORE INSERT ON %[1]s.qsidecar_jobs FOR EACH ROW WHEN (NEW.queue = %[3]s) EXECUTE FUNCTION %[1]s.refuse()`,
				o.Schema, literal(reason), literal(queue)))
		},
		PlainInsert: func(queue, payload string) {
			must(t, url, fmt.Sprintf(`INSERT INTO %s.qsidecar_jobs (queue, payload) VALUES (%s, %s)`, o.Schema, literal(queue), literal(payload)))
		},
	}
}

// loseCommit has the connection break at the next commit.
func (s *Store) loseCommit(before bool) {
	hook := func(c *pgx.Conn, now bool) {
		if now == before {
			s.fault.Store(nil)
			c.PgConn().Conn().Close()
		}
	}
	s.fault.Store(&hook)
}

// soak has each server run everything.
var soak = os.Getenv("QSIDECAR_SOAK") != ""

// TestConformance runs the suite on each server, and where the database's owner chose
// another isolation than the usual one: the oldest server with one, the newest with the
// other. Of a run in short the oldest has the usual one through its pooler.
func TestConformance(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		for isolation, on := range map[string]string{"read committed": "18", "repeatable read": "13", "serializable": "18"} {
			if !soak && !strings.HasPrefix(p.Version, on) && len(servers) > 1 {
				continue
			}
			url := p.Database(t)
			must(t, url, fmt.Sprintf(`DO $$BEGIN EXECUTE format('ALTER DATABASE %%I SET default_transaction_isolation = %%L', current_database(), %s); END$$`, literal(isolation)))
			t.Run(isolation, func(t *testing.T) { conform(t, url) })
		}
	})
}

// conform runs the suite in one database, each test in a schema of its own.
func conform(t *testing.T, url string) {
	var n atomic.Int64
	backendtest.Run(t, func(t *testing.T) *backendtest.Database {
		return database(t, url, Options{Schema: fmt.Sprintf("test_%d", n.Add(1))})
	})
}

// TestConformanceThroughAPooler runs the suite through PgBouncer in transaction mode.
func TestConformanceThroughAPooler(t *testing.T) {
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
		conform(t, url)
	})
}
