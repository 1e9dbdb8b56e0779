package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// mysqlServer is a MySQL or MariaDB that a test may harm: one of its own,
// whatever server the environment names, with the durability of its defaults.
type mysqlServer struct {
	*testserver.MySQL
	t        testing.TB
	database string // the site's
	earlier  contention
}

// contention is what transactions did to each other, as the server counts it.
type contention struct{ deadlocks, timeouts int }

// The kinds that claim by skipping locked rows.
var skipping = []testserver.Kind{testserver.MySQL97, testserver.MariaDB1011}

// onMySQL runs f on a site before a new server of each kind. MySQL may be
// missing: then testserver says so loudly, and again in the closing lines.
func onMySQL(t *testing.T, kinds []testserver.Kind, f func(t *testing.T, s *site, p *mysqlServer)) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			s, p, err := newMySQLSite(t, kind)
			if errors.Is(err, testserver.ErrNotHad) {
				figure(t, "NOT TESTED on MySQL, which could not be had")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			f(t, s, p)
		})
	}
}

func newMySQLSite(t *testing.T, kind testserver.Kind) (*site, *mysqlServer, error) {
	t.Helper()
	ownMySQL(t)
	p, err := startMySQL(t, kind, testserver.Options{Durable: true})
	if err != nil {
		return nil, nil, err
	}
	s := newSite(t)
	s.url = p.URL(p.database)
	return s, p, nil
}

// ownMySQL has the test's servers be its own, whatever the environment names.
func ownMySQL(t *testing.T) {
	for _, env := range []string{testserver.EnvMySQL, testserver.EnvMariaDB, testserver.EnvMariaDBOld} {
		t.Setenv(env, "")
	}
}

// startMySQL starts a server, with the database of a site, that ends with the test.
func startMySQL(t testing.TB, kind testserver.Kind, o testserver.Options) (*mysqlServer, error) {
	m, err := testserver.StartMySQL(t.Context(), kind, o)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if t.Failed() {
			said := m.Log()
			t.Logf("the server's log ends:\n%s", said[max(0, len(said)-4<<10):])
		}
		if err := m.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%s: %s", kind, m.Version)
	p := &mysqlServer{MySQL: m, t: t, database: "e2e"}
	if err := m.Exec(t.Context(), "CREATE DATABASE e2e"); err != nil { // it goes with the server
		return nil, err
	}
	return p, p.countTimeouts()
}

// open is a pool of connections beside the sidecars', as other programs have.
func (p *mysqlServer) open(t testing.TB) *sql.DB {
	t.Helper()
	db, err := p.Open(p.database)
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

// query returns the first column of the rows, as texts.
func (p *mysqlServer) query(statement string, args ...any) []string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := p.Open(p.database)
	if err != nil {
		p.t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, statement, args...)
	if err != nil {
		p.t.Fatalf("%s: %v", statement, err)
	}
	defer rows.Close()
	var got []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			p.t.Fatal(err)
		}
		got = append(got, s)
	}
	if err := rows.Err(); err != nil {
		p.t.Fatal(err)
	}
	return got
}

// jobs lists the ids of all rows of the job table.
func (p *mysqlServer) jobs(testing.TB) []string {
	return p.query("SELECT CAST(id AS CHAR) FROM qsidecar_jobs")
}

// endConnection ends a random connection of a sidecar. That is no reason for a
// second delivery of anything.
func (p *mysqlServer) endConnection(r *crashRuntime) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ids, err := p.Connections(ctx, p.database)
	if err != nil {
		p.t.Fatal(err)
	}
	if len(ids) == 0 {
		return
	}
	r.killing(connections, func() {
		if err := p.Kill(ctx, ids[r.rand.IntN(len(ids))]); err != nil {
			p.t.Fatal(err)
		}
	})
}

// crash kills the server by signal 9; it comes back and recovers from its log.
func (p *mysqlServer) crash(r *crashRuntime) {
	p.t.Helper()
	p.earlier = p.contention() // it counts in its memory
	r.killing(everything, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(p.Kill9(), p.Go(ctx), p.countTimeouts()); err != nil {
			p.t.Fatal(err)
		}
	})
}

// countTimeouts has the server count what it does not count by default.
func (p *mysqlServer) countTimeouts() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return p.Exec(ctx, "SET GLOBAL innodb_monitor_enable = 'lock_timeouts'", "SET GLOBAL innodb_monitor_enable = 'lock_deadlocks'")
}

// contention is all since the site began.
func (p *mysqlServer) contention() contention {
	p.t.Helper()
	all := p.earlier
	for name, n := range map[string]*int{"lock_deadlocks": &all.deadlocks, "lock_timeouts": &all.timeouts} {
		var now int
		got := p.query("SELECT count FROM information_schema.innodb_metrics WHERE name = ?", name)
		if len(got) != 1 {
			p.t.Fatalf("the server counts no %s", name)
		}
		if _, err := fmt.Sscan(got[0], &now); err != nil {
			p.t.Fatal(err)
		}
		*n += now
	}
	return all
}

// TestMySQLCountsDeadlocks: the counters with which other tests tell of deadlocks
// and waits see one of each.
func TestMySQLCountsDeadlocks(t *testing.T) {
	onMySQL(t, skipping, func(t *testing.T, s *site, p *mysqlServer) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		db := p.open(t)
		for _, statement := range []string{"CREATE TABLE two (id int PRIMARY KEY, n int)", "INSERT INTO two VALUES (1, 0), (2, 0)"} {
			if _, err := db.ExecContext(ctx, statement); err != nil {
				t.Fatal(err)
			}
		}
		var ends [2]*sql.Tx
		for i := range ends {
			var err error
			if ends[i], err = db.BeginTx(ctx, nil); err != nil {
				t.Fatal(err)
			}
			defer ends[i].Rollback()
			if _, err := ends[i].ExecContext(ctx, "UPDATE two SET n = 1 WHERE id = ?", i+1); err != nil {
				t.Fatal(err)
			}
		}
		failed := make(chan error, 2)
		for i := range ends {
			go func() {
				_, err := ends[i].ExecContext(ctx, "UPDATE two SET n = 1 WHERE id = ?", 2-i)
				failed <- err
			}()
		}
		e := (*mysql.MySQLError)(nil)
		if err := errors.Join(<-failed, <-failed); !errors.As(err, &e) || e.Number != 1213 {
			t.Fatalf("no deadlock came about: %v", err)
		}
		if _, err := db.ExecContext(ctx, "SET GLOBAL innodb_lock_wait_timeout = 1"); err != nil {
			t.Fatal(err)
		}
		third, err := p.Open(p.database) // a new session, with the new setting
		if err != nil {
			t.Fatal(err)
		}
		defer third.Close()
		if _, err := third.ExecContext(ctx, "UPDATE two SET n = 2"); !errors.As(err, &e) || e.Number != 1205 {
			t.Fatalf("no wait timed out: %v", err)
		}
		if got := p.contention(); got != (contention{deadlocks: 1, timeouts: 1}) {
			t.Errorf("counted %+v, want one of each", got)
		}
	})
}
