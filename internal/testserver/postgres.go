package testserver

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// EnvURL names an existing PostgreSQL server (a URL of a role that can create databases) to use
// instead of starting servers.
const EnvURL = "QSIDECAR_TEST_POSTGRES"

// Versions returns the major versions to test: the oldest and the newest supported, only the newest
// with -short, or only "" if EnvURL names the server.
func Versions() []string {
	switch {
	case os.Getenv(EnvURL) != "":
		return []string{""}
	case shortRun():
		return []string{NewestPostgres}
	}
	return []string{"13", NewestPostgres}
}

// shortRun is testing.Short that also works in TestMain, before the flags are parsed, and in
// programs that are not tests.
func shortRun() bool {
	if !testing.Testing() {
		return false
	}
	if !flag.Parsed() {
		flag.Parse()
	}
	return testing.Short()
}

// NewestPostgres is the newest supported major version.
const NewestPostgres = "18"

// Options change how a server runs.
type Options struct {
	Own      bool              // start a server for this test even if EnvURL is set
	Durable  bool              // fsync and full_page_writes as in production, for measurements and crash tests
	Settings map[string]string // further settings, as in postgresql.conf

	clock string // of a Galera node: the library with which SetClock works
}

// Postgres is a running server with its own data directory.
type Postgres struct {
	Version string // as the server reports it

	admin  *url.URL
	dir    string // empty if this package did not start the server
	server string // path of the program
	args   []string
	who    account
	proc   *process // nil if this package did not start the server
	number atomic.Int64
}

// StartPostgres starts a server of that major version (see Versions) on a Unix socket. It ends with
// Stop, and also if this process dies in any way.
func StartPostgres(ctx context.Context, version string, o Options) (*Postgres, error) {
	if at := os.Getenv(EnvURL); at != "" && !o.Own {
		admin, err := url.Parse(at)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", EnvURL, err)
		}
		p := &Postgres{admin: admin}
		return p, errors.Join(p.Ready(ctx), p.recordRun())
	}
	who, err := unprivileged()
	if err != nil {
		return nil, err
	}
	cache, err := cacheDir(who)
	if err != nil {
		return nil, err
	}
	home, err := install(cache, version)
	if err != nil {
		return nil, err
	}
	template, err := initialized(ctx, cache, home, version, who)
	if err != nil {
		return nil, err
	}
	p, err := start(home, template, who, o)
	if err != nil {
		return nil, err
	}
	if err := p.Ready(ctx); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, p.recordRun()
}

// initialized returns a data directory that initdb created once, to be copied.
func initialized(ctx context.Context, cache, home, version string, who account) (string, error) {
	dir := filepath.Join(cache, fmt.Sprintf("data-%s-%d", packages[version], who.uid))
	err := locked(filepath.Join(cache, "initdb.lock"), func() error {
		if _, err := os.Stat(filepath.Join(dir, "PG_VERSION")); err == nil {
			return nil
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := os.Chown(dir, who.uid, who.gid); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, filepath.Join(home, "bin", "initdb"), "--pgdata="+dir,
			"--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
		cmd.SysProcAttr = &syscall.SysProcAttr{}
		if who.drop {
			cmd.SysProcAttr = who.attributes(0)
		}
		cmd.Dir = "/"
		if out, err := cmd.CombinedOutput(); err != nil {
			return errors.Join(fmt.Errorf("initdb: %w\n%s", err, out), os.RemoveAll(dir))
		}
		return nil
	})
	return dir, err
}

// start copies the template and runs a server on the copy.
func start(home, template string, who account, o Options) (*Postgres, error) {
	removeDeadServers()
	// The path must be short: a Unix socket's path has at most 107 bytes. Its name contains the
	// process id.
	dir, err := newServerDir("qspg", o)
	if err != nil {
		return nil, err
	}
	p := &Postgres{dir: dir, server: filepath.Join(home, "bin", "postgres"), who: who}
	if err := prepare(dir, template, who); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	p.admin = &url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/postgres",
		RawQuery: url.Values{"host": {dir}}.Encode()}
	if port := o.Settings["port"]; port != "" {
		p.admin.RawQuery += "&port=" + port // the port is also in the socket's name
	}
	settings := map[string]string{
		"listen_addresses": "", "unix_socket_directories": dir, "max_connections": "200", "shared_buffers": "256MB",
		"dynamic_shared_memory_type": "mmap",                                   // in the data directory, so that nothing stays after a kill
		"log_line_prefix":            "%m [%p] ", "timezone": "Asia/Kathmandu", // far from UTC, to find code that depends on the time zone
	}
	if !o.Durable {
		settings["fsync"], settings["full_page_writes"], settings["synchronous_commit"] = "off", "off", "off"
	}
	maps.Copy(settings, o.Settings)
	p.args = []string{"-D", filepath.Join(dir, "data")}
	for k, v := range settings {
		p.args = append(p.args, "-c", k+"="+v)
	}
	if err := p.run(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

// run starts the server's process on its data. SIGQUIT ends it at once if this process dies,
// because the data is then useless.
func (p *Postgres) run() (err error) {
	p.proc, err = launch(exec.Command(p.server, p.args...), p.who, syscall.SIGQUIT, filepath.Join(p.dir, "log"))
	return err
}

// prepare fills a server's directory dir with a copy of the template.
func prepare(dir, template string, who account) error {
	data := filepath.Join(dir, "data")
	if err := os.CopyFS(data, os.DirFS(template)); err != nil {
		return fmt.Errorf("copying the data directory: %w", err)
	}
	return errors.Join(own(dir, who), os.Chmod(data, 0o700), os.Chmod(dir, 0o755))
}

// own gives a directory and all below it to the server's user.
func own(dir string, who account) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !who.drop {
			return err
		}
		return os.Lchown(path, who.uid, who.gid)
	})
}

// removeDeadServers removes the directories of test processes that were killed.
func removeDeadServers() {
	left, err := serverDirs()
	if err != nil {
		return // can't fail: the pattern is constant
	}
	for _, dir := range left {
		pid, err := strconv.Atoi(strings.Split(filepath.Base(dir), "-")[1])
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir) // another process can remove it at the same time
		}
	}
}

// Ready waits until the server answers and reads its version. After a crash of one of its processes the server recovers by itself.
func (p *Postgres) Ready(ctx context.Context) error {
	return p.proc.waitReady(ctx, "PostgreSQL", func(ctx context.Context) error {
		c, err := pgx.Connect(ctx, p.admin.String())
		if err != nil && p.dir == "" {
			return fmt.Errorf("the server that %s names: %w", EnvURL, err)
		}
		if err != nil {
			return err
		}
		err = c.QueryRow(ctx, "SHOW server_version").Scan(&p.Version)
		return errors.Join(err, c.Close(ctx))
	})
}

// Stop ends the server and removes its data. It does nothing to a server that this package did not
// start.
func (p *Postgres) Stop() error {
	if p.dir == "" {
		return nil
	}
	_, err := p.proc.stop(syscall.SIGQUIT)
	return errors.Join(err, os.RemoveAll(p.dir))
}

// Log returns the server's log, for a test that failed.
func (p *Postgres) Log() string { return p.proc.output() }

// PID returns the id of the server's main process, or 0 if this package did not start it.
func (p *Postgres) PID() int {
	if p.proc == nil {
		return 0
	}
	return p.proc.process.Pid
}

// Admin returns the URL of a superuser on the database "postgres".
func (p *Postgres) Admin() string { return p.admin.String() }

// Exec runs statements as the superuser, each in its own transaction.
func (p *Postgres) Exec(ctx context.Context, statements ...string) (err error) {
	c, err := pgx.Connect(ctx, p.admin.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	for _, sql := range statements {
		if _, err := c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// Database creates an empty database, which is dropped when the test ends, and returns its
// superuser's URL.
func (p *Postgres) Database(t testing.TB) string {
	t.Helper()
	return p.Copy(t, "template0")
}

// Copy is like Database, with a copy of a template database, which must have no sessions.
func (p *Postgres) Copy(t testing.TB, template string) string {
	t.Helper()
	name := fmt.Sprintf("t%d_%d", os.Getpid(), p.number.Add(1))
	sql := fmt.Sprintf(`CREATE DATABASE "%s" TEMPLATE "%s"`, name, template)
	if major, _, _ := strings.Cut(p.Version, "."); major >= "15" {
		sql += " STRATEGY file_copy" // half the work of the default, which writes each page to the log
	}
	if err := p.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Exec(context.Background(), `DROP DATABASE "`+name+`" WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	at := *p.admin
	at.Path = "/" + name
	return at.String()
}
