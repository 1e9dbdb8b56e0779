package testserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// MySQL is a running MySQL or MariaDB with an own data directory.
type MySQL struct {
	Kind    Kind
	Version string // as the server says it: "9.7.4", "10.11.18-MariaDB-…"

	// How to reach it. The user may do anything, and has one password everywhere.
	Host, Port     string
	Socket         string // "": not started here
	User, Password string

	dir    string // "": not started here
	home   string // the unpacked packages
	args   []string
	who    account
	run    *running
	number atomic.Int64
}

// The one user that the servers started here have beside root, whom they let in
// from localhost alone.
const (
	mysqlUser     = "qsidecar"
	mysqlPassword = "a test's, no secret"
)

// StartMySQL starts a server of that kind (see MySQLKinds) on a Unix socket and a
// port of 127.0.0.1, with the defaults of its makers. It ends with Stop, and also
// when this process dies in any way. The error of one that cannot be had and may
// be missing is ErrNotHad.
func StartMySQL(ctx context.Context, kind Kind, o Options) (*MySQL, error) {
	from, ok := origins[kind]
	if !ok {
		return nil, fmt.Errorf("testserver knows no %s", kind)
	}
	if at := os.Getenv(from.env); at != "" {
		return namedMySQL(ctx, kind, at)
	}
	who, err := unprivileged()
	if err != nil {
		return nil, err
	}
	cache, err := cacheDir(who)
	if err != nil {
		return nil, err
	}
	home, err := installMySQL(ctx, cache, kind)
	if err != nil {
		return nil, err
	}
	template, err := templateMySQL(home, kind, who)
	if err != nil {
		return nil, err
	}
	m := &MySQL{Kind: kind, User: mysqlUser, Password: mysqlPassword, Host: "127.0.0.1", home: home, who: who}
	if err := m.start(ctx, template, o); err != nil {
		return nil, err
	}
	return m, tell(m.product() + " " + m.Version)
}

// namedMySQL is a server that somebody else runs.
func namedMySQL(ctx context.Context, kind Kind, at string) (*MySQL, error) {
	env := origins[kind].env
	u, err := url.Parse(at)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", env, err)
	}
	m := &MySQL{Kind: kind, Host: u.Hostname(), Port: u.Port(), User: u.User.Username()}
	m.Password, _ = u.User.Password()
	if m.Port == "" {
		m.Port = "3306"
	}
	if err := m.Ready(ctx); err != nil {
		return nil, fmt.Errorf("the server that %s names: %w", env, err)
	}
	return m, tell(m.product() + " " + m.Version)
}

func (m *MySQL) product() string {
	if origins[m.Kind].maria {
		return "MariaDB"
	}
	return "MySQL"
}

// start copies the template and runs a server on it.
func (m *MySQL) start(ctx context.Context, template string, o Options) error {
	sweepDead()
	// Short: a Unix socket's path must stay below 107 bytes. Its name tells whose it is.
	dir, err := newPlace("qsmy", o)
	if err != nil {
		return err
	}
	m.dir, m.Socket = dir, filepath.Join(dir, "sock")
	if err := errors.Join(prepare(dir, template, m.who), m.ownID(), m.users()); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	// A port that was free may be taken a moment later.
	for range 5 {
		if m.Port, err = freePort(); err != nil {
			break
		}
		m.args = m.settings(o)
		if err = m.Go(ctx); err == nil || !strings.Contains(m.Log(), "ddress already in use") {
			break
		}
	}
	if err != nil {
		return errors.Join(err, m.Stop())
	}
	return nil
}

// users writes the statements that a server runs before it lets anybody in.
func (m *MySQL) users() error {
	words := fmt.Sprintf("CREATE USER IF NOT EXISTS '%[1]s'@'%%' IDENTIFIED BY '%[2]s';\nGRANT ALL ON *.* TO '%[1]s'@'%%' WITH GRANT OPTION;\n",
		m.User, strings.ReplaceAll(m.Password, "'", "''"))
	return os.WriteFile(filepath.Join(m.dir, "users.sql"), []byte(words), 0o644)
}

func (m *MySQL) settings(o Options) []string {
	settings := map[string]string{
		"datadir": filepath.Join(m.dir, "data"), "socket": m.Socket, "port": m.Port, "bind-address": m.Host,
		"pid-file": filepath.Join(m.dir, "pid"), "init-file": filepath.Join(m.dir, "users.sql"), "tmpdir": m.dir,
		"skip-name-resolve": "1", "max-connections": "200",
		"default-time-zone": "+05:45", // far from UTC, to find who relies on it
	}
	if !origins[m.Kind].maria {
		settings["mysqlx"], settings["secure-file-priv"] = "OFF", "NULL" // no further port, no folder of the system
	}
	if !o.Durable {
		settings["innodb-flush-log-at-trx-commit"], settings["sync-binlog"], settings["innodb-doublewrite"] = "0", "0", "0"
	}
	maps.Copy(settings, o.Settings)
	var args []string
	for k, v := range settings {
		args = append(args, "--"+k+"="+v)
	}
	return args
}

// freePort is one below those that the kernel gives to clients, so that none of
// these takes it while the server restarts.
func freePort() (string, error) {
	var failed error
	for range 20 {
		port := strconv.Itoa(20_000 + rand.IntN(12_000))
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			return port, l.Close()
		}
		failed = err
	}
	return "", fmt.Errorf("no free port on 127.0.0.1: %w", failed)
}

// ask asks the server's version and compares it with the kind: neither product
// may stand in for the other.
func (m *MySQL) ask(ctx context.Context) error {
	db, err := m.Open("")
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&m.Version); err != nil {
		return err
	}
	from := origins[m.Kind]
	if strings.Contains(strings.ToLower(m.Version), "mariadb") != from.maria {
		return fmt.Errorf("%s says that its version is %s: this is another product", m.Kind, m.Version)
	}
	if m.dir != "" && !strings.HasPrefix(m.Version, from.says) {
		return fmt.Errorf("%s says that its version is %s", m.Kind, m.Version)
	}
	return nil
}

// Open is a pool of connections to a database ("": none), by way of the socket
// where there is one.
func (m *MySQL) Open(database string) (*sql.DB, error) {
	c, err := mysql.NewConnector(m.Config(database))
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(c), nil
}

// Config is what the driver needs for a database.
func (m *MySQL) Config(database string) *mysql.Config {
	c := mysql.NewConfig()
	c.User, c.Passwd, c.DBName = m.User, m.Password, database
	c.Net, c.Addr = "tcp", net.JoinHostPort(m.Host, m.Port)
	if m.Socket != "" {
		c.Net, c.Addr = "unix", m.Socket
	}
	c.Logger = &mysql.NopLogger{} // a server that is not up yet is no news
	return c
}

// URL is that of a database, over TCP.
func (m *MySQL) URL(database string) string {
	u := url.URL{Scheme: "mysql", User: url.UserPassword(m.User, m.Password), Host: net.JoinHostPort(m.Host, m.Port), Path: "/" + database}
	return u.String()
}

// SocketURL is that of a database, over the Unix socket; "" where there is none.
func (m *MySQL) SocketURL(database string) string {
	if m.Socket == "" {
		return ""
	}
	u := url.URL{Scheme: "mysql", User: url.UserPassword(m.User, m.Password), Host: "localhost", Path: "/" + database,
		RawQuery: url.Values{"socket": {m.Socket}}.Encode()}
	return u.String()
}

// Exec runs statements, each in its own transaction.
func (m *MySQL) Exec(ctx context.Context, statements ...string) error {
	db, err := m.Open("")
	if err != nil {
		return err
	}
	defer db.Close()
	for _, words := range statements {
		if _, err := db.ExecContext(ctx, words); err != nil {
			return fmt.Errorf("%s: %w", words, err)
		}
	}
	return nil
}

// Database makes an empty database that is dropped when the test ends, and
// returns its name.
func (m *MySQL) Database(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("t%d_%d", os.Getpid(), m.number.Add(1))
	if err := m.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.drop(name); err != nil {
			t.Error(err)
		}
	})
	return name
}

var errNotOurs = errors.New("testserver: a server that was not started here cannot be halted")

// Go starts the server, which Halt or Kill9 ended, and waits until it answers.
func (m *MySQL) Go(ctx context.Context) (err error) {
	if m.dir == "" {
		return errNotOurs
	}
	cmd, err := program(m.home, m.args...)
	if err != nil {
		return err
	}
	// At once when this process dies: the data is of no use to anybody.
	if m.run, err = launch(cmd, m.who, syscall.SIGKILL, m.log()); err != nil {
		return err
	}
	return m.Ready(ctx)
}

// Ready waits until the server answers.
func (m *MySQL) Ready(ctx context.Context) error {
	var ended error
	err := testwait.Poll(ctx, func(ctx context.Context) error {
		err := m.ask(ctx)
		if err == nil || m.dir == "" {
			ended = err
			return nil
		}
		select {
		case e := <-m.run.ended:
			m.run.ended <- e
			ended = fmt.Errorf("the server ended as it started: %w\n%s", e, m.Log())
			return nil
		default:
			return err
		}
	})
	if err != nil {
		return fmt.Errorf("the server did not start: %w\n%s", err, m.Log())
	}
	return ended
}

// Halt ends the server and keeps its data, as an operator does who restarts it.
func (m *MySQL) Halt() error { return m.end(syscall.SIGTERM) }

// Kill9 crashes the server and keeps its data.
func (m *MySQL) Kill9() error { return m.end(syscall.SIGKILL) }

func (m *MySQL) end(s syscall.Signal) error {
	if m.dir == "" {
		return errNotOurs
	}
	err := m.run.stop(s)
	m.run.ended <- err // for Stop
	return err
}

// PID is the process id of the server; 0: not started here.
func (m *MySQL) PID() int {
	if m.run == nil {
		return 0
	}
	return m.run.process.Pid
}

// Stop ends the server and removes its data. It does nothing to a server that
// this package did not start.
func (m *MySQL) Stop() error {
	if m.dir == "" {
		return nil
	}
	var err error
	if m.run != nil {
		err = m.end(syscall.SIGKILL)
	}
	return errors.Join(err, os.RemoveAll(m.dir))
}

func (m *MySQL) log() string { return filepath.Join(m.dir, "log") }

// Log is what the server wrote so far, for a test that failed.
func (m *MySQL) Log() string {
	said, err := os.ReadFile(m.log())
	if err != nil {
		return err.Error()
	}
	return string(said)
}
