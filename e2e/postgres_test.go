package e2e

import (
	"context"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// server is a PostgreSQL that a test may harm: one of its own, whatever server
// the environment names, on real durability.
type server struct {
	*testserver.Postgres
	t        testing.TB
	database string // the site's
	url      string // of it
	addr     string // host:port, where it listens on TCP
}

// newPostgresSite is a site on a new server of the newest version.
func newPostgresSite(t *testing.T) (*site, *server) {
	t.Helper()
	port := freePort(t)
	p, err := testserver.StartPostgres(t.Context(), testserver.NewestPostgres, testserver.Options{
		Own: true, Durable: true, Settings: map[string]string{"listen_addresses": "127.0.0.1", "port": port},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			said := p.Log()
			t.Logf("the server's log ends:\n%s", said[max(0, len(said)-4<<10):])
		}
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("PostgreSQL %s", p.Version)
	s := newSite(t)
	srv := &server{Postgres: p, t: t, database: "e2e", addr: "127.0.0.1:" + port}
	if err := p.Exec(t.Context(), "CREATE DATABASE e2e TEMPLATE template0"); err != nil { // it goes with the server
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(p.Admin())
	if err != nil {
		t.Fatal(err)
	}
	srv.url = "postgres://postgres@/e2e?host=" + config.Host + "&port=" + port
	s.url = srv.url
	return s, srv
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// query runs SQL in a connection of its own and returns the first column, as texts.
func (p *server) query(url, sql string, args ...any) []string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		p.t.Fatal(err)
	}
	defer c.Close(ctx)
	rows, err := c.Query(ctx, sql, args...)
	if err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
	return got
}

// jobs lists the ids of all rows of the job table.
func (p *server) jobs(t testing.TB) []string {
	return p.query(p.url, "SELECT id::text FROM qsidecar.qsidecar_jobs")
}

// backends are the process ids of the connections to the site's database.
func (p *server) backends() []string {
	return p.query(p.Admin(), "SELECT pid::text FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend' ORDER BY 1", p.database)
}

// someBackend picks one of them; false: there is none just now.
func (p *server) someBackend(r *crashRuntime) (int, bool) {
	p.t.Helper()
	pids := p.backends()
	if len(pids) == 0 {
		return 0, false
	}
	pid, err := strconv.Atoi(pids[r.rand.IntN(len(pids))])
	if err != nil {
		p.t.Fatal(err)
	}
	return pid, true
}

// endConnection ends a random connection of a sidecar. That is no reason for a
// second delivery of anything.
func (p *server) endConnection(r *crashRuntime) {
	pid, ok := p.someBackend(r)
	if !ok {
		return
	}
	r.killing(connections, func() {
		p.query(p.Admin(), "SELECT pg_terminate_backend($1)::text", pid)
	})
}

// killBackend kills a process of the server by signal 9: the whole server
// ends all connections and recovers from its log.
func (p *server) killBackend(r *crashRuntime) {
	p.t.Helper()
	pid, ok := p.someBackend(r)
	if !ok {
		p.t.Fatal("no connection to kill")
	}
	r.killing(everything, func() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			p.t.Fatal(err)
		}
		eventually(p.t, patience, "the backend is gone", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := p.Ready(ctx); err != nil {
			p.t.Fatal(err)
		}
	})
}

// plainInsert is another program: it knows SQL and no sidecar.
func plainInsert(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	_, err = c.Exec(ctx, "INSERT INTO qsidecar.qsidecar_jobs (queue, payload) VALUES ('mail', 'hello')")
	return err
}
