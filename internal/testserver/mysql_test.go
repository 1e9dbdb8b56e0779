package testserver

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// TestMySQL checks that every kind starts, accepts the user over TCP and the socket, keeps
// committed data in a crash, and restarts at the same address.
func TestMySQL(t *testing.T) {
	for _, kind := range MySQLKinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			m, err := StartMySQL(t.Context(), kind, Options{Durable: true})
			if errors.Is(err, ErrUnavailable) {
				t.Log(err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := m.Stop(); err != nil {
					t.Error(err)
				}
			})
			name := m.Database(t)
			listsSessionsDuringBinaryStatement(t, m)
			if err := m.Exec(t.Context(), "CREATE TABLE "+name+".kept (n int PRIMARY KEY)", "INSERT INTO "+name+".kept VALUES (7)"); err != nil {
				t.Fatal(err)
			}
			if m.dir != "" {
				restarted(t, m, m.Kill9)
				restarted(t, m, m.Halt)
			}
			if n := m.kept(t, name); n != 7 {
				t.Errorf("read %d, want 7", n)
			}
			if m.Socket = ""; m.kept(t, name) != 7 {
				t.Error("over TCP the value differs")
			}
		})
	}
}

// listsSessionsDuringBinaryStatement checks that the sessions can be listed during a statement with bytes that are not
// text.
func listsSessionsDuringBinaryStatement(t *testing.T, m *MySQL) {
	t.Helper()
	db, err := m.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	name := m.Database(t)
	c, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.ExecContext(t.Context(), "USE "+name); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { // runs until it is killed
		_, err := c.ExecContext(ctx, "SELECT SLEEP(600), _binary '\x80\x81\x82'")
		ended <- err
	}()
	defer func() {
		cancel()
		if err := <-ended; err == nil {
			t.Error("the statement ended by itself")
		}
	}()
	for {
		var n int
		if err := db.QueryRowContext(ctx, "SELECT count(*) FROM "+MySQLSessions+" WHERE db = ? AND command = 'Query'", name).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			break
		}
	}
	if ids, err := m.Connections(ctx, name); err != nil || len(ids) != 1 {
		t.Errorf("%v, %v", ids, err)
	}
}

func restarted(t *testing.T, m *MySQL, end func() error) {
	t.Helper()
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if err := m.checkVersion(t.Context()); err == nil {
		t.Fatal("a server that was ended answers")
	}
	if err := m.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (m *MySQL) kept(t *testing.T, name string) (n int) {
	t.Helper()
	db, err := m.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(t.Context(), "SELECT n FROM kept").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestMariaDBIsRejectedAsMySQL checks that a MariaDB under MySQL's name is rejected.
func TestMariaDBIsRejectedAsMySQL(t *testing.T) {
	t.Setenv(EnvMySQL, "") // use a server of this package
	t.Setenv(EnvMariaDB, "")
	m, err := StartMySQL(t.Context(), MariaDB1011, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv(EnvMySQL, m.URL(""))
	if s, err := StartMySQL(context.Background(), MySQL97, Options{}); err == nil {
		t.Errorf("%s passed for MySQL", s.Version)
	}
	if got := fmt.Sprint(MySQLKinds()); got != "[MySQL 9.7]" {
		t.Errorf("with one server named the kinds %s are tested", got)
	}
}
