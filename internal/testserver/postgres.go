package testserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Postgres is a running server with its own data directory.
type Postgres struct {
	Version string // as the server reports it

	admin  *url.URL
	dir    string // empty if this package did not start the server
	server string // path of the program
	args   []string
	who    local.Account
	proc   *local.Process // nil if this package did not start the server
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
	who, err := local.Unprivileged()
	if err != nil {
		return nil, err
	}
	cache, err := local.CacheDirOf(who)
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

// start copies the template and runs a server on the copy.
func start(home, template string, who local.Account, o Options) (*Postgres, error) {
	local.RemoveDeadServers()
	// The path must be short: a Unix socket's path has at most 107 bytes. Its name contains the
	// process id.
	dir, err := local.NewServerDir("qspg", o.Durable)
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
	p.proc, err = local.Launch(exec.Command(p.server, p.args...), p.who, syscall.SIGQUIT, filepath.Join(p.dir, "log"))
	return err
}

// Ready waits until the server answers and reads its version. After a crash of one of its processes the server recovers by itself.
func (p *Postgres) Ready(ctx context.Context) error {
	return p.proc.WaitReady(ctx, "PostgreSQL", func(ctx context.Context) error {
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
	_, err := p.proc.Stop(syscall.SIGQUIT)
	return errors.Join(err, os.RemoveAll(p.dir))
}

// Log returns the server's log, for a test that failed.
func (p *Postgres) Log() string { return p.proc.Output() }

// PID returns the id of the server's main process, or 0 if this package did not start it.
func (p *Postgres) PID() int {
	if p.proc == nil {
		return 0
	}
	return p.proc.OS.Pid
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

func (p *Postgres) recordRun() error { return local.RecordServer("PostgreSQL " + p.Version) }

// Halt shuts the server down and keeps its data. Connections end and transactions roll back.
// Restart starts it again.
func (p *Postgres) Halt() error { return p.end(syscall.SIGINT) }

func (p *Postgres) end(s syscall.Signal) error {
	if p.dir == "" {
		return errNotOurs
	}
	return errors.Join(p.proc.Stop(s))
}

// Restart starts the server again after Halt or Crash, and waits until it answers.
func (p *Postgres) Restart(ctx context.Context) error {
	if err := p.run(); err != nil {
		return err
	}
	return p.Ready(ctx)
}

// Crash ends the server without a shutdown and keeps its data. Restart starts it again.
func (p *Postgres) Crash() error { return p.end(syscall.SIGQUIT) }

// Standby starts a streaming standby of a server that this package started. It restarts that
// server, because the standby starts with a copy of its data after a clean shutdown.
func (p *Postgres) Standby(ctx context.Context) (*Postgres, error) {
	if err := p.Halt(); err != nil {
		return nil, err
	}
	dir, err := local.NewServerDir("qspg", false)
	if err != nil {
		return nil, err
	}
	s := &Postgres{dir: dir, server: p.server, who: p.who}
	err = errors.Join(prepare(dir, filepath.Join(p.dir, "data"), p.who), p.Restart(ctx))
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(dir, "data", "standby.signal"), nil, 0o644),
			appendTo(filepath.Join(dir, "data", "postgresql.auto.conf"), fmt.Sprintf("primary_conninfo = 'host=%s user=postgres'\n", p.dir)))
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	at := *p.admin
	q := at.Query()
	q.Set("host", dir)
	at.RawQuery = q.Encode()
	s.admin = &at
	for _, arg := range p.args {
		switch arg {
		case filepath.Join(p.dir, "data"):
			arg = filepath.Join(dir, "data")
		case "unix_socket_directories=" + p.dir:
			arg = "unix_socket_directories=" + dir
		}
		s.args = append(s.args, arg)
	}
	if err := s.run(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.Ready(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, s.recordRun()
}

// Follow makes a server that has ended a standby of a running one. It starts it with a new copy of that one's data, and waits until
// it streams.
func (p *Postgres) Follow(ctx context.Context, primary *Postgres) (err error) {
	data := filepath.Join(p.dir, "data")
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	c, err := pgx.Connect(ctx, primary.Admin())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	begin, end := "pg_backup_start('follow', true)", "pg_backup_stop(false)"
	if major, _, _ := strings.Cut(p.Version, "."); major < "15" {
		begin, end = "pg_start_backup('follow', true, false)", "pg_stop_backup(false)"
	}
	if _, err := c.Exec(ctx, "SELECT "+begin); err != nil {
		return err
	}
	if err := copyRunning(data, filepath.Join(primary.dir, "data")); err != nil {
		return err
	}
	var label string
	if err := c.QueryRow(ctx, "SELECT labelfile FROM "+end).Scan(&label); err != nil {
		return err
	}
	from := primary.admin.Query()
	err = errors.Join(os.WriteFile(filepath.Join(data, "backup_label"), []byte(label), 0o600),
		os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o600),
		appendTo(filepath.Join(data, "postgresql.auto.conf"), fmt.Sprintf("primary_conninfo = 'host=%s port=%s user=postgres'\n", from.Get("host"), cmp.Or(from.Get("port"), "5432"))),
		own(p.dir, p.who))
	if err != nil {
		return err
	}
	if err := p.Restart(ctx); err != nil {
		return err
	}
	return p.CaughtUp(ctx, primary)
}

func appendTo(file, text string) (err error) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString(text)
	return err
}

// Detach ends the replication from the primary.
func (p *Postgres) Detach(ctx context.Context) error {
	if err := p.Exec(ctx, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	return testwait.Poll(ctx, func(ctx context.Context) error {
		return p.Exec(ctx, "DO $$BEGIN ASSERT NOT EXISTS (SELECT FROM pg_stat_wal_receiver), 'it still receives'; END$$")
	})
}

// CaughtUp waits until a standby has received and replayed all that its primary has committed now. What it replayed can be ahead by
// the empty rest of a segment. If the primary shuts down then, it can remove that segment, and the standby gets nothing after it.
func (p *Postgres) CaughtUp(ctx context.Context, primary *Postgres) error {
	var at string
	if err := primary.ask(ctx, &at, "SELECT pg_current_wal_flush_lsn()::text"); err != nil {
		return err
	}
	return testwait.Poll(ctx, func(ctx context.Context) error {
		var there bool
		if err := p.ask(ctx, &there, "SELECT $1::text::pg_lsn <= ALL (ARRAY[pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()])", at); err != nil || !there {
			return fmt.Errorf("the standby has not replayed %s: %w", at, err)
		}
		return nil
	})
}

// Promote makes a standby a primary, and waits until it accepts writes.
func (p *Postgres) Promote(ctx context.Context) error {
	var ok bool
	if err := p.ask(ctx, &ok, "SELECT pg_promote(true, 3600)"); err != nil || !ok {
		return fmt.Errorf("the standby was not promoted: %w", err)
	}
	return nil
}

// SyncStandby makes commits of a primary wait for its standby, or not. It waits until this takes effect.
func (p *Postgres) SyncStandby(ctx context.Context, waits bool) error {
	names := ""
	if waits {
		names = "*"
	}
	if err := p.Exec(ctx, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'", "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	if err := testwait.Poll(ctx, func(ctx context.Context) error {
		var now string
		if err := p.ask(ctx, &now, "SELECT current_setting('synchronous_standby_names')"); err != nil || now != names {
			return fmt.Errorf("synchronous_standby_names is %q: %w", now, err)
		}
		return nil
	}); err != nil {
		return err
	}
	return p.Exec(ctx, "CHECKPOINT") // commits wait once the checkpointer has read the setting, which it does first
}

// ask runs a query with one value.
func (p *Postgres) ask(ctx context.Context, to any, sql string, args ...any) error {
	c, err := pgx.Connect(ctx, p.Admin())
	if err != nil {
		return err
	}
	return errors.Join(c.QueryRow(ctx, sql, args...).Scan(to), c.Close(context.WithoutCancel(ctx)))
}

// Freeze stops all processes of the server, as a host that hangs.
func (p *Postgres) Freeze() error { return p.signalAll(syscall.SIGSTOP) }

// Thaw continues the server's processes after Freeze.
func (p *Postgres) Thaw() error { return p.signalAll(syscall.SIGCONT) }

// Kill9 kills all processes of the server with signal 9, also those that are frozen, and keeps its data. It waits for their
// end: the next server doesn't start while one of them has the shared memory.
func (p *Postgres) Kill9() error {
	if err := p.Freeze(); err != nil {
		return err
	}
	all, err := local.Children(p.PID())
	if err != nil {
		return err
	}
	if err := p.signalAll(syscall.SIGKILL); err != nil {
		return err
	}
	_, err = p.proc.Stop(syscall.SIGKILL)
	return errors.Join(err, local.WaitEnded(all))
}

func (p *Postgres) signalAll(s syscall.Signal) error { return local.SignalTree(p.PID(), s) }

// copyRunning copies the data directory of a running server, as a backup does. The server can remove files at the same time.
func copyRunning(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		case rel == "postmaster.pid", rel == "standby.signal", strings.HasPrefix(rel, "pg_wal"), strings.HasPrefix(rel, "pg_dynshmem"):
			return nil
		}
		return copyFile(filepath.Join(to, rel), path)
	})
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // it was only read
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
