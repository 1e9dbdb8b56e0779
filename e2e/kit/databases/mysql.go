package databases

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// MySQL is a MySQL or MariaDB that a test can harm. The package always starts it itself, with the
// default durability.
type MySQL struct {
	*testserver.MySQL
	T       testing.TB
	Name    string // name of the site's database
	earlier Contention
}

// Contention is how often transactions blocked each other, by the server's counters.
type Contention struct{ Deadlocks, Timeouts int }

// OwnMySQL makes the test start its own servers, whatever the environment names.
func OwnMySQL(t *testing.T) {
	for _, env := range []string{testserver.EnvMySQL, testserver.EnvMariaDB, testserver.EnvMariaDBOld} {
		t.Setenv(env, "")
	}
}

// StartMySQL starts a server with a site's database. It ends with the test.
func StartMySQL(t testing.TB, kind testserver.Kind, o testserver.Options) (*MySQL, error) {
	m, err := testserver.StartMySQL(t.Context(), kind, o)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if t.Failed() {
			output := m.Log()
			t.Logf("the server's log ends:\n%s", output[max(0, len(output)-4<<10):])
		}
		if err := m.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%s: %s", kind, m.Version)
	p := &MySQL{MySQL: m, T: t, Name: "e2e"}
	if err := m.Exec(t.Context(), "CREATE DATABASE e2e"); err != nil { // dropped with the server
		return nil, err
	}
	return p, p.countTimeouts()
}

// DB returns a pool of connections beside the sidecars', as other programs have.
func (m *MySQL) DB(t testing.TB) *sql.DB {
	t.Helper()
	db, err := m.Open(m.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// Query returns the first column of the rows as texts.
func (m *MySQL) Query(statement string, args ...any) []string {
	m.T.Helper()
	ctx := context.Background()
	db, err := m.Open(m.Name)
	if err != nil {
		m.T.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, statement, args...)
	if err != nil {
		m.T.Fatalf("%s: %v", statement, err)
	}
	defer rows.Close()
	var got []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			m.T.Fatal(err)
		}
		got = append(got, s)
	}
	if err := rows.Err(); err != nil {
		m.T.Fatal(err)
	}
	return got
}

// Jobs returns the ids of all rows of the job table.
func (m *MySQL) Jobs(testing.TB) []string {
	return m.Query("SELECT CAST(id AS CHAR) FROM qsidecar_jobs")
}

// ConnectionIDs returns the ids of the connections to the site's database.
func (m *MySQL) ConnectionIDs() (all []string) {
	m.T.Helper()
	ids, err := m.Connections(context.Background(), m.Name)
	if err != nil {
		m.T.Fatal(err)
	}
	for _, id := range ids {
		all = append(all, strconv.FormatInt(id, 10))
	}
	return all
}

// EndConnection ends the connection with that id.
func (m *MySQL) EndConnection(id string) {
	m.T.Helper()
	n, err := strconv.ParseInt(id, 10, 64)
	if err == nil {
		err = m.Kill(context.Background(), n)
	}
	if err != nil {
		m.T.Fatal(err)
	}
}

// Crash kills the server with signal 9 and restarts it. It recovers from its log.
func (m *MySQL) Crash() {
	m.T.Helper()
	m.earlier = m.Contention() // the counters are in its memory
	if err := errors.Join(m.Kill9(), m.Restart(context.Background()), m.countTimeouts()); err != nil {
		m.T.Fatal(err)
	}
}

// countTimeouts makes the server count lock timeouts, which it does not by default.
func (m *MySQL) countTimeouts() error {
	ctx := context.Background()
	return m.Exec(ctx, "SET GLOBAL innodb_monitor_enable = 'lock_timeouts'", "SET GLOBAL innodb_monitor_enable = 'lock_deadlocks'")
}

// Contention returns the counts since the site began.
func (m *MySQL) Contention() Contention {
	m.T.Helper()
	all := m.earlier
	for name, n := range map[string]*int{"lock_deadlocks": &all.Deadlocks, "lock_timeouts": &all.Timeouts} {
		var now int
		got := m.Query("SELECT count FROM information_schema.innodb_metrics WHERE name = ?", name)
		if len(got) != 1 {
			m.T.Fatalf("the server counts no %s", name)
		}
		if _, err := fmt.Sscan(got[0], &now); err != nil {
			m.T.Fatal(err)
		}
		*n += now
	}
	return all
}
