package kit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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

// SkipLockedKinds are the kinds of servers that support SKIP LOCKED.
var SkipLockedKinds = []testserver.Kind{testserver.MySQL97, testserver.MariaDB1011}

// OnMySQL runs f on a site with a new server of each kind. If MySQL is unavailable, testserver
// reports it, and again at the end of the run.
func OnMySQL(t *testing.T, kinds []testserver.Kind, f func(t *testing.T, s *Site, p *MySQL)) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			s, p, err := NewMySQLSite(t, kind)
			if errors.Is(err, testserver.ErrUnavailable) {
				Figure(t, "NOT TESTED on MySQL, which could not be had")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			f(t, s, p)
		})
	}
}

// NewMySQLSite returns a site with a new server of that kind.
func NewMySQLSite(t *testing.T, kind testserver.Kind) (*Site, *MySQL, error) {
	t.Helper()
	OwnMySQL(t)
	p, err := StartMySQL(t, kind, testserver.Options{Durable: true})
	if err != nil {
		return nil, nil, err
	}
	s := NewSite(t)
	s.URL = p.URL(p.Name)
	return s, p, nil
}

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
func (p *MySQL) DB(t testing.TB) *sql.DB {
	t.Helper()
	db, err := p.Open(p.Name)
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
func (p *MySQL) Query(statement string, args ...any) []string {
	p.T.Helper()
	ctx := context.Background()
	db, err := p.Open(p.Name)
	if err != nil {
		p.T.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, statement, args...)
	if err != nil {
		p.T.Fatalf("%s: %v", statement, err)
	}
	defer rows.Close()
	var got []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			p.T.Fatal(err)
		}
		got = append(got, s)
	}
	if err := rows.Err(); err != nil {
		p.T.Fatal(err)
	}
	return got
}

// Jobs returns the ids of all rows of the job table.
func (p *MySQL) Jobs(testing.TB) []string {
	return p.Query("SELECT CAST(id AS CHAR) FROM qsidecar_jobs")
}

// EndConnection ends a random connection of a sidecar. That does not explain a second delivery.
func (p *MySQL) EndConnection(r *CrashRuntime) {
	p.T.Helper()
	ctx := context.Background()
	ids, err := p.Connections(ctx, p.Name)
	if err != nil {
		p.T.Fatal(err)
	}
	if len(ids) == 0 {
		return
	}
	r.Killing(Connections, func() {
		if err := p.Kill(ctx, ids[r.Rand.IntN(len(ids))]); err != nil {
			p.T.Fatal(err)
		}
	})
}

// Crash kills the server with signal 9 and restarts it. It recovers from its log.
func (p *MySQL) Crash(r *CrashRuntime) {
	p.T.Helper()
	p.earlier = p.Contention() // the counters are in its memory
	r.Killing(everything, func() {
		ctx := context.Background()
		if err := errors.Join(p.Kill9(), p.Restart(ctx), p.countTimeouts()); err != nil {
			p.T.Fatal(err)
		}
	})
}

// countTimeouts makes the server count lock timeouts, which it does not by default.
func (p *MySQL) countTimeouts() error {
	ctx := context.Background()
	return p.Exec(ctx, "SET GLOBAL innodb_monitor_enable = 'lock_timeouts'", "SET GLOBAL innodb_monitor_enable = 'lock_deadlocks'")
}

// Contention returns the counts since the site began.
func (p *MySQL) Contention() Contention {
	p.T.Helper()
	all := p.earlier
	for name, n := range map[string]*int{"lock_deadlocks": &all.Deadlocks, "lock_timeouts": &all.Timeouts} {
		var now int
		got := p.Query("SELECT count FROM information_schema.innodb_metrics WHERE name = ?", name)
		if len(got) != 1 {
			p.T.Fatalf("the server counts no %s", name)
		}
		if _, err := fmt.Sscan(got[0], &now); err != nil {
			p.T.Fatal(err)
		}
		*n += now
	}
	return all
}
