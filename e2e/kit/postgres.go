package kit

import (
	"context"
	"strconv"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Postgres is a PostgreSQL that a test can harm. The package always starts it itself, with full
// durability.
type Postgres struct {
	*testserver.Postgres
	T    testing.TB
	Name string // name of the site's database
	URL  string // URL of the site's database
	Addr string // host:port of its TCP listener
}

// NewPostgresSite returns a site with a new server of the newest version.
func NewPostgresSite(t *testing.T) (*Site, *Postgres) {
	t.Helper()
	return NewPostgresSiteOf(t, testserver.NewestPostgres)
}

// NewPostgresSiteOf returns a site with a new server of a major version.
func NewPostgresSiteOf(t *testing.T, version string) (*Site, *Postgres) {
	t.Helper()
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	p, err := testserver.StartPostgres(t.Context(), version, testserver.Options{
		Own: true, Durable: true, Settings: map[string]string{"listen_addresses": "127.0.0.1", "port": port},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			output := p.Log()
			t.Logf("the server's log ends:\n%s", output[max(0, len(output)-4<<10):])
		}
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("PostgreSQL %s", p.Version)
	s := NewSite(t)
	srv := &Postgres{Postgres: p, T: t, Name: "e2e", Addr: "127.0.0.1:" + port}
	if err := p.Exec(t.Context(), "CREATE DATABASE e2e TEMPLATE template0"); err != nil { // dropped with the server
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(p.Admin())
	if err != nil {
		t.Fatal(err)
	}
	srv.URL = "postgres://postgres@/e2e?host=" + config.Host + "&port=" + port
	s.URL = srv.URL
	return s, srv
}

// Query runs SQL in its own connection and returns the first column as texts.
func (p *Postgres) Query(url, sql string, args ...any) []string {
	p.T.Helper()
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		p.T.Fatal(err)
	}
	defer c.Close(ctx)
	rows, err := c.Query(ctx, sql, args...)
	if err != nil {
		p.T.Fatalf("%s: %v", sql, err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		p.T.Fatalf("%s: %v", sql, err)
	}
	return got
}

// Jobs returns the ids of all rows of the job table.
func (p *Postgres) Jobs(t testing.TB) []string {
	return p.Query(p.URL, "SELECT id::text FROM qsidecar.qsidecar_jobs")
}

// Backends returns the process ids of the connections to the site's database.
func (p *Postgres) Backends() []string {
	return p.Query(p.Admin(), "SELECT pid::text FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend' ORDER BY 1", p.Name)
}

// someBackend returns a random one of them, or false if there are none.
func (p *Postgres) someBackend(r *CrashRuntime) (int, bool) {
	p.T.Helper()
	pids := p.Backends()
	if len(pids) == 0 {
		return 0, false
	}
	pid, err := strconv.Atoi(pids[r.Rand.IntN(len(pids))])
	if err != nil {
		p.T.Fatal(err)
	}
	return pid, true
}

// EndConnection ends a random connection of a sidecar. That does not explain a second delivery.
func (p *Postgres) EndConnection(r *CrashRuntime) {
	pid, ok := p.someBackend(r)
	if !ok {
		return
	}
	r.Killing(Connections, func() {
		p.Query(p.Admin(), "SELECT pg_terminate_backend($1)::text", pid)
	})
}

// KillBackend kills a process of the server with signal 9. The server then ends all connections and
// recovers from its log.
func (p *Postgres) KillBackend(r *CrashRuntime) {
	p.T.Helper()
	pid, ok := p.someBackend(r)
	if !ok {
		p.T.Fatal("no connection to kill")
	}
	r.Killing(everything, func() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			p.T.Fatal(err)
		}
		testwait.Until(p.T, "the backend has ended", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
		ctx := context.Background()
		if err := p.Ready(ctx); err != nil {
			p.T.Fatal(err)
		}
	})
}

// plainInsert enqueues like a program that uses only SQL.
func plainInsert(url string) error {
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	_, err = c.Exec(ctx, "INSERT INTO qsidecar.qsidecar_jobs (queue, payload) VALUES ('mail', 'hello')")
	return err
}
