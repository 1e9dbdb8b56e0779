package testserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// MySQL is a running MySQL or MariaDB server with its own data directory.
type MySQL struct {
	Kind    Kind
	Version string // as the server reports it: "9.7.4", "10.11.18-MariaDB-…"

	// The address and the user, which has all privileges and one password everywhere.
	Host, Port     string
	Socket         string // empty if this package did not start the server
	User, Password string

	dir      string // empty if this package did not start the server
	home     string // directory of the unpacked packages
	args     []string
	who      local.Account
	unlogged bool // the user is not in the binary log, because each server creates it
	run      *local.Process
	number   atomic.Int64

	galera    bool   // a node of a Galera cluster
	clock     string // as in Options
	bootstrap string // the position with which the node starts a new cluster; empty: it joins one
}

// The user of servers that this package starts, beside root. They accept connections only from
// localhost.
const (
	mysqlUser     = "qsidecar"
	mysqlPassword = "a test's, no secret"
)

// StartMySQL starts a server of that kind (see MySQLKinds) on a Unix socket and a port of
// 127.0.0.1, with default settings. The server ends with Stop, and also if this process dies in any
// way. If a server is unavailable and the tests can run without it, the error is ErrUnavailable.
func StartMySQL(ctx context.Context, kind Kind, o Options) (*MySQL, error) {
	return startMySQL(ctx, kind, o, "")
}

// startMySQL is StartMySQL on a copy of the data directory template, if that is not empty.
func startMySQL(ctx context.Context, kind Kind, o Options, template string) (*MySQL, error) {
	from, ok := origins[kind]
	if !ok {
		return nil, fmt.Errorf("testserver does not support %s", kind)
	}
	if at := os.Getenv(from.env); at != "" {
		return namedMySQL(ctx, kind, at)
	}
	who, err := local.Unprivileged()
	if err != nil {
		return nil, err
	}
	cache, err := local.CacheDirOf(who)
	if err != nil {
		return nil, err
	}
	home, err := installMySQL(ctx, cache, kind)
	if err != nil {
		return nil, err
	}
	if template == "" {
		if template, err = templateMySQL(home, kind, who); err != nil {
			return nil, err
		}
	}
	m := &MySQL{Kind: kind, User: mysqlUser, Password: mysqlPassword, Host: "127.0.0.1", home: home, who: who, galera: o.Settings["wsrep-on"] != ""}
	m.clock = o.clock
	m.unlogged = o.Settings["gtid-mode"] != "" || o.Settings["gtid-strict-mode"] != ""
	if err := m.start(ctx, template, o); err != nil {
		return nil, err
	}
	return m, local.RecordServer(m.product() + " " + m.Version)
}

// namedMySQL returns a server that this package did not start.
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
	return m, local.RecordServer(m.product() + " " + m.Version)
}

func (m *MySQL) product() string {
	if origins[m.Kind].maria {
		return "MariaDB"
	}
	return "MySQL"
}

// start copies the template and runs a server on the copy.
func (m *MySQL) start(ctx context.Context, template string, o Options) error {
	local.RemoveDeadServers()
	// The path must be short: a Unix socket's path has at most 107 bytes. Its name contains the
	// process id.
	dir, err := local.NewServerDir("qsmy", o.Durable)
	if err != nil {
		return err
	}
	m.dir, m.Socket = dir, filepath.Join(dir, "sock")
	err = errors.Join(prepare(dir, template, m.who), m.ownID(), m.users())
	if err == nil && m.galera {
		err = m.transferScript()
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	// Another process can take a free port in between.
	for range 5 {
		if m.Port, err = local.FreePort(); err != nil {
			break
		}
		m.args = m.settings(o)
		if err = m.Restart(ctx); err == nil || !strings.Contains(m.Log(), "ddress already in use") {
			break
		}
	}
	if err != nil {
		return errors.Join(err, m.Stop())
	}
	return nil
}

// users writes the statements that a server runs before it accepts connections.
func (m *MySQL) users() error {
	statement := fmt.Sprintf("CREATE USER IF NOT EXISTS '%[1]s'@'%%' IDENTIFIED BY '%[2]s';\nGRANT ALL ON *.* TO '%[1]s'@'%%' WITH GRANT OPTION;\n",
		m.User, strings.ReplaceAll(m.Password, "'", "''"))
	if m.unlogged {
		statement = "SET sql_log_bin = 0;\n" + statement
	}
	return os.WriteFile(filepath.Join(m.dir, "users.sql"), []byte(statement), 0o644)
}

func (m *MySQL) settings(o Options) []string {
	settings := map[string]string{
		"datadir": filepath.Join(m.dir, "data"), "socket": m.Socket, "port": m.Port, "bind-address": m.Host,
		"pid-file": filepath.Join(m.dir, "pid"), "init-file": filepath.Join(m.dir, "users.sql"), "tmpdir": m.dir,
		"skip-name-resolve": "1", "max-connections": "200",
		"default-time-zone": "+05:45", // far from UTC, to find code that depends on the time zone
	}
	if !origins[m.Kind].maria {
		settings["mysqlx"], settings["secure-file-priv"] = "OFF", "NULL" // no second port, no directory of the system
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

// checkVersion reads the server's version and compares it with the kind, because MySQL and MariaDB must not
// replace each other.
func (m *MySQL) checkVersion(ctx context.Context) error {
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
		return fmt.Errorf("%s reports version %s: this is another product", m.Kind, m.Version)
	}
	if m.dir != "" && !strings.HasPrefix(m.Version, from.versionPrefix) {
		return fmt.Errorf("%s reports version %s", m.Kind, m.Version)
	}
	return nil
}

// Open returns a pool of connections to a database (empty: none), over the socket if there is one.
func (m *MySQL) Open(database string) (*sql.DB, error) {
	c, err := mysql.NewConnector(m.Config(database))
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(c), nil
}

// Config returns the driver's config for a database.
func (m *MySQL) Config(database string) *mysql.Config {
	c := mysql.NewConfig()
	c.User, c.Passwd, c.DBName = m.User, m.Password, database
	c.Net, c.Addr = "tcp", net.JoinHostPort(m.Host, m.Port)
	if m.Socket != "" {
		c.Net, c.Addr = "unix", m.Socket
	}
	c.Logger = &mysql.NopLogger{} // do not log that a server is not up yet
	return c
}

// URL returns the URL of a database over TCP.
func (m *MySQL) URL(database string) string {
	u := url.URL{Scheme: "mysql", User: url.UserPassword(m.User, m.Password), Host: net.JoinHostPort(m.Host, m.Port), Path: "/" + database}
	return u.String()
}

// SocketURL returns the URL of a database over the Unix socket, or "" if there is none.
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
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// Database creates an empty database, which is dropped when the test ends, and returns its name.
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

// Restart starts the server again after Halt or Kill9, and waits until it answers.
func (m *MySQL) Restart(ctx context.Context) (err error) {
	if m.dir == "" {
		return errNotOurs
	}
	args := m.args
	if m.galera {
		more, err := m.joinArgs()
		if err != nil {
			return err
		}
		args = append(slices.Clone(args), more...)
	}
	cmd, err := program(m.home, args...)
	if err != nil {
		return err
	}
	if m.galera {
		if err := m.joinEnv(cmd); err != nil {
			return err
		}
	}
	// SIGKILL if this process dies, because the data is then useless.
	if m.run, err = local.Launch(cmd, m.who, syscall.SIGKILL, m.log()); err != nil {
		return err
	}
	return m.Ready(ctx)
}

// Ready waits until the server answers.
func (m *MySQL) Ready(ctx context.Context) error {
	return m.run.WaitReady(ctx, "the server", m.checkVersion)
}

// Halt shuts the server down and keeps its data.
func (m *MySQL) Halt() error { return m.end(syscall.SIGTERM) }

// Kill9 crashes the server and keeps its data.
func (m *MySQL) Kill9() error { return m.end(syscall.SIGKILL) }

func (m *MySQL) end(s syscall.Signal) error {
	if m.dir == "" {
		return errNotOurs
	}
	_, err := m.run.Stop(s)
	return err
}

// PID returns the process id of the server, or 0 if this package did not start it.
func (m *MySQL) PID() int {
	if m.run == nil {
		return 0
	}
	return m.run.OS.Pid
}

// Stop ends the server and removes its data. It does nothing to a server that this package did not
// start.
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

// Log returns the server's log, for a test that failed.
func (m *MySQL) Log() string { return m.run.Output() }

// drop ends the connections to a database, which can hold locks, and drops it.
func (m *MySQL) drop(name string) error {
	return testwait.Poll(context.Background(), func(ctx context.Context) error {
		ids, err := m.Connections(ctx, name)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := m.Kill(ctx, id); err != nil {
				return err
			}
		}
		return m.Exec(ctx, "DROP DATABASE IF EXISTS "+name)
	})
}

// MySQLSessions is the table of sessions, with id, db and command. MySQL's table in
// information_schema fails if a running statement contains bytes that are not text.
const MySQLSessions = "/*M! information_schema.processlist */ /*!80022 performance_schema.processlist */"

// Connections returns the ids of the sessions that use a database.
func (m *MySQL) Connections(ctx context.Context, database string) (ids []int64, err error) {
	db, err := m.Open("")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, "SELECT id FROM "+MySQLSessions+" WHERE db = ? ORDER BY id", database)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// Kill ends a connection. One that has ended by itself isn't an error.
//
// MySQL closes the killed session's socket in the thread that runs KILL. If the session is
// about to write an answer, that answer goes to the next connection that gets the same file
// descriptor, which can be another test's. So on MySQL Kill interrupts the session's
// statements until it idles, and only then kills it.
func (m *MySQL) Kill(ctx context.Context, id int64) error {
	db, err := m.Open("")
	if err != nil {
		return err
	}
	defer db.Close()
	for command := ""; !origins[m.Kind].maria; {
		err := db.QueryRowContext(ctx, "SELECT command FROM "+MySQLSessions+" WHERE id = ?", id).Scan(&command)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		if command == "Sleep" {
			break
		}
		if err := endOf(ctx, db, "QUERY", id); err != nil {
			return err
		}
	}
	return endOf(ctx, db, "CONNECTION", id)
}

func endOf(ctx context.Context, db *sql.DB, what string, id int64) error {
	const noSuchThread = 1094
	_, err := db.ExecContext(ctx, fmt.Sprintf("KILL %s %d", what, id))
	if e := (*mysql.MySQLError)(nil); errors.As(err, &e) && e.Number == noSuchThread {
		return nil
	}
	return err
}

// Freeze stops the server's process. Connections stay open and get no replies.
func (m *MySQL) Freeze() error { return m.run.OS.Signal(syscall.SIGSTOP) }

// Thaw continues the server's process after Freeze.
func (m *MySQL) Thaw() error { return m.run.OS.Signal(syscall.SIGCONT) }

// Ended reports whether the server's process has ended.
func (m *MySQL) Ended() bool {
	select {
	case status := <-m.run.Ended:
		m.run.Ended <- status
		return true
	default:
		return false
	}
}

// row returns the first row of a query as texts.
func (m *MySQL) row(ctx context.Context, statement string) ([]string, error) {
	_, row, err := m.nameAndRow(ctx, statement)
	return row, err
}

// named returns the first row of a query by the names of its columns.
func (m *MySQL) named(ctx context.Context, statement string) (map[string]string, error) {
	names, row, err := m.nameAndRow(ctx, statement)
	all := map[string]string{}
	for i, value := range row {
		all[strings.ToLower(names[i])] = value
	}
	return all, err
}

func (m *MySQL) nameAndRow(ctx context.Context, statement string) (names, row []string, err error) {
	db, err := m.Open("")
	if err != nil {
		return nil, nil, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, statement)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", statement, err)
	}
	defer rows.Close()
	names, err = rows.Columns()
	if err != nil || !rows.Next() {
		return nil, nil, fmt.Errorf("%s returned no row: %w", statement, errors.Join(err, rows.Err()))
	}
	texts, into := make([]sql.NullString, len(names)), make([]any, len(names))
	for i := range texts {
		into[i] = &texts[i]
	}
	if err := rows.Scan(into...); err != nil {
		return nil, nil, err
	}
	row = make([]string, len(names))
	for i, t := range texts {
		row[i] = t.String
	}
	return names, row, rows.Close()
}

// ownID gives the copy of a data directory its own server id. Servers with the same id do not
// replicate each other.
func (m *MySQL) ownID() error {
	err := os.Remove(filepath.Join(m.dir, "data", "auto.cnf"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // MariaDB
	}
	return err
}
