package mysql

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// address is a service address: a socket that leads to one of two servers, and can be moved.
// Both have the tables, and an account that is not exempt from read_only.
type address struct {
	dir      string
	old, new *testserver.MySQL
}

const database, account = "failover", "app"

func newAddress(t *testing.T, kind testserver.Kind) *address {
	t.Helper()
	a := &address{dir: t.TempDir()}
	for _, m := range []**testserver.MySQL{&a.old, &a.new} {
		var err error
		if *m, err = testserver.StartMySQL(t.Context(), kind, testserver.Options{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := (*m).Stop(); err != nil {
				t.Error(err)
			}
		})
		if err := (*m).Exec(t.Context(), "CREATE DATABASE "+database, "CREATE USER "+account+" IDENTIFIED BY 'x'",
			"GRANT ALL ON "+database+".* TO "+account); err != nil {
			t.Fatal(err)
		}
		open(t, Options{URL: (*m).URL(database)})
	}
	a.moveTo(t, a.old)
	return a
}

func (a *address) socket() string { return filepath.Join(a.dir, "sock") }

func (a *address) moveTo(t *testing.T, m *testserver.MySQL) {
	t.Helper()
	next := a.socket() + ".next"
	if err := errors.Join(os.Symlink(m.Socket, next), os.Rename(next, a.socket())); err != nil {
		t.Error(err)
	}
}

// URL returns the address for an account.
func (a *address) URL(user, password string) string {
	u := url.URL{Scheme: "mysql", User: url.UserPassword(user, password), Host: "localhost", Path: "/" + database,
		RawQuery: url.Values{"socket": {a.socket()}}.Encode()}
	return u.String()
}

func setReadOnly(t *testing.T, m *testserver.MySQL, on bool) {
	t.Helper()
	if err := m.Exec(t.Context(), fmt.Sprintf("SET GLOBAL read_only = %t", on)); err != nil {
		t.Fatal(err)
	}
}

func enqueue(t *testing.T, s *Store) error {
	_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}})
	return err
}

// ownServers runs a test with servers that it can change or harm.
func ownServers(t *testing.T, f func(t *testing.T, kind testserver.Kind)) {
	if testing.Short() {
		t.Skip("make check runs this: each case starts two servers")
	}
	for kind, m := range servers {
		if m.Socket == "" {
			continue // the server is external, and no other of its kind exists
		}
		t.Run(string(kind), func(t *testing.T) { f(t, kind) })
	}
}

// TestReadOnlyServer checks that a server that became read-only is unavailable, also for heartbeats. When
// the address leads to another server, the sidecar uses that one, although its sessions with the first are
// still good.
func TestReadOnlyServer(t *testing.T) {
	ownServers(t, func(t *testing.T, kind testserver.Kind) {
		a := newAddress(t, kind)
		s := open(t, Options{URL: a.URL(account, "x")})
		unavailable := func(when string) {
			t.Helper()
			if err := enqueue(t, s); !backends.Retryable(err) {
				t.Errorf("%s: %v, want unavailable", when, err)
			}
			if _, err := s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: 1, Kind: backends.HeartbeatJoin, Timeout: time.Minute}); !backends.Retryable(err) {
				t.Errorf("%s, a heartbeat: %v, want unavailable", when, err)
			}
		}
		join(t, s, 1)
		if err := enqueue(t, s); err != nil {
			t.Fatal(err)
		}
		setReadOnly(t, a.old, true)
		unavailable("the server became read-only")
		setReadOnly(t, a.new, true)
		a.moveTo(t, a.new)
		unavailable("the new server is read-only yet")
		if _, err := Open(t.Context(), Options{URL: a.new.URL(database)}); !backends.IsUnreachable(err) { // an account with all rights
			t.Errorf("opening a replica: %v, want unavailable", err)
		}
		setReadOnly(t, a.new, false)
		if err := enqueue(t, s); err != nil {
			t.Errorf("the address has moved to a server that can be written to: %v", err)
		}
		join(t, s, 2)
	})
}

// TestReadOnlyServerAndExemptAccount uses an account with all rights, which can write to a read-only
// server. From the next heartbeat on the sidecar does not write, not even through sessions from before.
func TestReadOnlyServerAndExemptAccount(t *testing.T) {
	ownServers(t, func(t *testing.T, kind testserver.Kind) {
		a := newAddress(t, kind)
		s := open(t, Options{URL: a.URL(a.old.User, a.old.Password)})
		join(t, s, 1)
		if err := enqueue(t, s); err != nil {
			t.Fatal(err)
		}
		setReadOnly(t, a.old, true)
		if _, err := s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: 1, Kind: backends.HeartbeatRenew, Timeout: time.Minute}); !backends.IsUnreachable(err) {
			t.Errorf("a heartbeat: %v, want unavailable", err)
		}
		if err := enqueue(t, s); !backends.IsUnreachable(err) {
			t.Errorf("a commit: %v, want unavailable", err)
		}
		a.moveTo(t, a.new)
		if err := enqueue(t, s); err != nil {
			t.Errorf("the address has moved to a server that can be written to: %v", err)
		}
		join(t, s, 2)
	})
}

// TestAServerThatLostAQueue checks a server that took over without the row of a queue that the sidecar has
// registered. Without the row no scheduled job of the queue becomes ready.
func TestAServerThatLostAQueue(t *testing.T) {
	ownServers(t, func(t *testing.T, kind testserver.Kind) {
		a := newAddress(t, kind)
		s := open(t, Options{URL: a.URL(account, "x")})
		schedule := func() error {
			_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Delay: time.Millisecond}}}}})
			return err
		}
		if err := schedule(); err != nil {
			t.Fatal(err)
		}
		a.moveTo(t, a.new)
		setReadOnly(t, a.old, true)
		testwait.Until(t, "the address has moved", func() bool { return schedule() == nil })
		testwait.Until(t, "the new server's job becomes ready", func() bool {
			r, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10})
			if err != nil {
				t.Fatal(err)
			}
			return r.Promoted > 0
		})
	})
}

// TestLostCommitAndReplica loses the answer to a COMMIT and moves the address to a replica. The replica
// has no row of the Counter, and lets an account with all rights write. That does not mean that nothing was
// written.
func TestLostCommitAndReplica(t *testing.T) {
	ownServers(t, func(t *testing.T, kind testserver.Kind) {
		a := newAddress(t, kind)
		setReadOnly(t, a.new, true)
		var moved atomic.Bool
		asked := make(chan struct{}, 100)
		s := open(t, Options{URL: a.URL(a.old.User, a.old.Password), wrap: func(c net.Conn) net.Conn {
			if moved.Load() {
				asked <- struct{}{}
			}
			return c
		}})
		lose := func(c *session.Conn, before bool) {
			if !before {
				s.fault.Store(nil)
				a.moveTo(t, a.new)
				moved.Store(true)
				c.Bad = true
				c.Wire.Close()
			}
		}
		s.fault.Store(&lose)
		answer := make(chan error, 1)
		go func() { answer <- enqueue(t, s) }()
		testwait.Receive(t, "the replica is asked", asked)
		testwait.Until(t, "its answer was believed, or it is asked again", func() bool { return len(asked) > 0 || len(answer) > 0 })
		moved.Store(false)
		a.moveTo(t, a.old)
		if err := testwait.Receive(t, "the answer", answer); err != nil {
			t.Errorf("the commit happened, and the answer is %v", err)
		}
	})
}

// TestClusterStates checks the errors of a member of a cluster or group that can't commit now.
func TestClusterStates(t *testing.T) {
	s := &Store{}
	for state, n := range map[string]uint16{
		"a Galera node outside of its cluster":            1047,
		"a Galera node that fell out of it in a COMMIT":   1180,
		"a member that left its replication group":        1290,
		"a storage engine that is read-only":              1874,
		"a server in read-only mode":                      1836,
		"a session that a proxy gave back with GTID_NEXT": 1837,
		"a server that is offline":                        3032,
		"a replication group without a majority":          3100,
		"a transaction that lost against another member":  3101,
		"a new primary that is busy with a backlog":       3781,
		"a new primary that is shut down":                 3782,
		"a new primary that left the group":               3783,
		"a member that can't wait for the others now":     3796,
		"a member that waited for the others too long":    3797,
		"a member whose others did not apply in time":     3798,
		"a member that leaves its group":                  3799,
	} {
		if err := s.withKind(&mysql.MySQLError{Number: n, SQLState: [5]byte([]byte("HY000"))}); !backends.IsUnreachable(err) {
			t.Errorf("%s: %v, want unavailable", state, err)
		}
	}
	if !session.EndsSession(&mysql.MySQLError{Number: session.CodeInCommit}) {
		t.Error("after an error in a COMMIT its outcome must be found out")
	}
}
