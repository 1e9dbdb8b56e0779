package databases

import (
	"context"
	"net/url"
	"strconv"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/e2e/kit/proxy"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
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

// StartPostgres starts a server of a major version with a site's database. It ends with the test.
func StartPostgres(t *testing.T, version string) *Postgres {
	t.Helper()
	port, err := local.FreePort()
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
	if err := p.Exec(t.Context(), "CREATE DATABASE e2e TEMPLATE template0"); err != nil { // dropped with the server
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(p.Admin())
	if err != nil {
		t.Fatal(err)
	}
	return &Postgres{
		Postgres: p, T: t, Name: "e2e", Addr: "127.0.0.1:" + port,
		URL: "postgres://postgres@/e2e?host=" + config.Host + "&port=" + port,
	}
}

// Proxy puts a proxy in front of the server, on TCP, and returns the server's URL through it.
func (p *Postgres) Proxy() (*proxy.Proxy, string) {
	p.T.Helper()
	n := proxy.New(p.T, p.Addr)
	at := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: n.Addr, Path: "/" + p.Name, RawQuery: "sslmode=disable"}
	return n, at.String()
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

// ConnectionIDs returns the process ids of the connections to the site's database.
func (p *Postgres) ConnectionIDs() []string {
	return p.Query(p.Admin(), "SELECT pid::text FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend' ORDER BY 1", p.Name)
}

// EndConnection ends the connection with that process id.
func (p *Postgres) EndConnection(pid string) {
	p.Query(p.Admin(), "SELECT pg_terminate_backend($1::text::int)::text", pid)
}

// KillBackend kills a process of the server, that of a connection to the site's database, with signal 9. The server then ends
// all connections and recovers from its log.
func (p *Postgres) KillBackend() {
	p.T.Helper()
	pids := p.ConnectionIDs()
	if len(pids) == 0 {
		p.T.Fatal("no connection to kill")
	}
	pid, err := strconv.Atoi(pids[0])
	if err != nil {
		p.T.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		p.T.Fatal(err)
	}
	testwait.Until(p.T, "the backend has ended", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
	ctx := context.Background()
	if err := p.Ready(ctx); err != nil {
		p.T.Fatal(err)
	}
}
