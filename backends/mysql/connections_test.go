package mysql

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestAnAbandonedSessionIsInterruptedNotKilled checks how an abandoned session is ended. MySQL's KILL
// closes the killed session's socket while that session can be about to write to it. Its answer then
// reaches another connection, which got the same file descriptor.
func TestAnAbandonedSessionIsInterruptedNotKilled(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s := open(t, Options{URL: m.URL(m.Database(t))})
		abandoned, err := s.dialer.Open(t.Context(), session.NewCounter())
		if err != nil {
			t.Fatal(err)
		}
		defer abandoned.Close()
		id, err := abandoned.Number(t.Context(), "SELECT CONNECTION_ID()")
		if err != nil {
			t.Fatal(err)
		}
		answer := make(chan error, 1)
		go func() { answer <- abandoned.Exec(t.Context(), "DO SLEEP(1000)") }()
		testwait.Until(t, "the abandoned session executes its statement", func() bool {
			return numberOf(t, m, "", fmt.Sprintf("SELECT COUNT(*) FROM %s WHERE id = %d AND state = 'User sleep'", testserver.MySQLSessions, id)) > 0
		})
		next, err := s.dialer.Open(t.Context(), session.NewCounter())
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		ended := make(chan error, 1)
		go func() { ended <- next.Kill(t.Context(), abandoned.Name) }()
		if err := testwait.Receive(t, "the statement's end", answer); err != nil && !session.IsCode(err, 1317) {
			t.Errorf("the abandoned session got %v, want its statement interrupted", err)
		}
		abandoned.Close()
		if err := testwait.Receive(t, "the session's end", ended); err != nil {
			t.Error(err)
		}
	})
}

// TestAnErrorAfterTheLastRowKeepsTheConnection checks that the connection stays usable after the server
// rejected a statement.
func TestAnErrorAfterTheLastRowKeepsTheConnection(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s := open(t, Options{URL: m.URL(m.Database(t))})
		c, err := s.pool.Take(t.Context(), &s.Meter)
		if err != nil {
			t.Fatal(err)
		}
		defer s.pool.Put(c)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var x session.Script
		x.Each(func(*session.Result) {}, "SELECT 1 UNION SELECT 2")
		x.Add("SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'")
		if err := c.Run(ctx, &x); session.CodeOf(err) != 1644 {
			t.Fatalf("the query returned %v", err)
		}
		if err := c.Exec(ctx, "DO 0"); err != nil {
			t.Errorf("the next statement: %v", err)
		}
	})
}

// interceptor is a connection that calls a function before and after each read and write.
type interceptor struct {
	net.Conn
	event func(c net.Conn)
	stop  func() // called by Close
}

func (i *interceptor) Read(p []byte) (int, error) {
	i.event(i.Conn)
	n, err := i.Conn.Read(p)
	i.event(i.Conn)
	return n, err
}

func (i *interceptor) Write(p []byte) (int, error) {
	i.event(i.Conn)
	n, err := i.Conn.Write(p)
	i.event(i.Conn)
	return n, err
}

// SyscallConn lets the pool find out that an idle connection was closed.
func (i *interceptor) SyscallConn() (syscall.RawConn, error) {
	return i.Conn.(syscall.Conn).SyscallConn()
}

func (i *interceptor) Close() error {
	if i.stop != nil {
		i.stop()
	}
	return i.Conn.Close()
}

// TestAContextThatEndsAfterTheLastRow checks a context that ends when the query has its answer. The driver
// then closes the connection, which must not return to the pool.
func TestAContextThatEndsAfterTheLastRow(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		closing, closed := make(chan struct{}), make(chan struct{})
		var once sync.Once
		var slow atomic.Bool // delays the driver's Close of the connection
		s := open(t, Options{URL: m.URL(m.Database(t)), wrap: func(c net.Conn) net.Conn {
			return &interceptor{Conn: c, event: func(net.Conn) {}, stop: func() {
				if slow.CompareAndSwap(true, false) {
					close(closing)
					<-closed
				}
			}}
		}})
		release := func() { once.Do(func() { close(closed) }) }
		defer release()
		c, err := s.pool.Take(t.Context(), &s.Meter)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		slow.Store(true)
		var x session.Script
		x.Query(func(r *session.Result) error {
			for ok := true; ok; {
				if ok, err = r.Next(); err != nil {
					return err
				}
			}
			cancel()
			testwait.Closed(t, "the driver closes the connection", closing)
			return nil
		}, "SELECT 1")
		if err := c.Run(ctx, &x); err != nil {
			t.Fatal(err)
		}
		s.pool.Put(c)
		if u := s.Usage(); u.Idle != 0 {
			t.Errorf("%d idle connections, want the closed one dropped", u.Idle)
		}
		release()
		write(t, s, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}})
	})
}

// TestContextsThatEndAtEachReadAndWrite ends a context before and after every read and write of an
// enqueue, also of those that open its connection. The answer must be true, and the next enqueue must
// succeed without a retry by its caller.
func TestContextsThatEndAtEachReadAndWrite(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		for _, cut := range []bool{false, true} { // how soon the driver notices
			t.Run(map[bool]string{false: "Later", true: "AtOnce"}[cut], func(t *testing.T) { endEverywhere(t, m, cut) })
		}
	})
}

func endEverywhere(t *testing.T, m *testserver.MySQL, cut bool) {
	name := m.Database(t)
	var left atomic.Int64 // events until the context ends
	var cancel context.CancelFunc
	s := open(t, Options{URL: m.URL(name), wrap: func(c net.Conn) net.Conn {
		return &interceptor{Conn: c, event: func(c net.Conn) {
			if left.Add(-1) == 0 {
				cancel()
				if cut {
					_ = c.Close() // fails if the driver was faster
				}
			}
		}}
	}})
	points := 0
	for warm := range 2 { // with a connection to open, and with an idle one
		for n := int64(1); ; n++ {
			if warm == 0 {
				s.pool.Retire()
			} else {
				write(t, s, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "warm"}}})
			}
			queue := fmt.Sprintf("q%d.%d", warm, n)
			ctx, end := context.WithCancel(t.Context())
			cancel = end
			left.Store(n)
			_, err := s.Commit(ctx, backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: queue}, {Queue: queue}}}}})
			fired := left.Swap(0) <= 0
			end()
			if !fired {
				if err != nil {
					t.Fatalf("%s: without an end: %v", queue, err)
				}
				break
			}
			points++
			// The next enqueue waits for what a session is still doing for the same Counter.
			write(t, s, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "next"}}})
			stored := numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_jobs WHERE queue = '"+queue+"'")
			if err == nil && stored != 2 || err != nil && stored != 0 && (stored != 2 || !errors.Is(err, backends.ErrUnknownOutcome)) {
				t.Errorf("%s: answered %v, and %d jobs exist", queue, err, stored)
			}
		}
	}
	if points < 10 {
		t.Errorf("the context ended at %d points, want every read and write", points)
	}
	t.Logf("the context ended at %d points", points)
}

// TestServerEndsSessionsOfVanishedHost checks that the server ends a session whose host vanished, and with it its locks,
// before other sidecars reap the host's jobs at the default sidecar_timeout of 30 s.
func TestServerEndsSessionsOfVanishedHost(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s := open(t, Options{URL: m.URL(m.Database(t))})
		for _, setting := range map[bool][]string{
			false: {"wait_timeout", "net_write_timeout", "net_read_timeout"},
			true:  {"idle_transaction_timeout", "net_write_timeout", "net_read_timeout"},
		}[s.dialer.Server.Maria] {
			c, err := s.pool.Take(t.Context(), &s.Meter)
			if err != nil {
				t.Fatal(err)
			}
			n, err := c.Number(t.Context(), "SELECT @@SESSION."+setting)
			s.pool.Put(c)
			if err != nil || n < 1 || n >= 30 {
				t.Errorf("%s is %d s, %v: the session would keep its locks for longer", setting, n, err)
			}
		}
	})
}
