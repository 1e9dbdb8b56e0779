package mysql

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestGaleraHosts: an address names all nodes of a cluster. The Store goes on at another node when the present one is killed, and
// when it stops answering without closing its connections. Another node also reports whether a commit happened whose answer was
// lost. Each job that was answered is there, once.
func TestGaleraHosts(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	g := startGalera(t)
	name := g.Nodes[0].Database(t)
	c := g.Nodes[0].Config(name)
	address := "mysql://" + url.UserPassword(c.User, c.Passwd).String() + "@"
	at := map[string]*testserver.MySQL{} // by address
	for i, node := range g.Nodes {
		host := net.JoinHostPort(node.Host, node.Port)
		at[host] = node
		if i > 0 {
			address += ","
		}
		address += host
	}
	s := open(t, Options{URL: address + "/" + name})
	join(t, s, 1)
	stored := int64(0)
	store := func() {
		t.Helper()
		testwait.Until(t, "an enqueue succeeds", func() bool {
			_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Key: fmt.Sprint(stored)}}}}})
			if err != nil && !backends.Retryable(err) {
				t.Errorf("an enqueue: %v, want unavailable", err)
			}
			return err == nil
		})
		stored++
	}
	present := func() *testserver.MySQL {
		c, err := s.pool.Take(t.Context(), &s.Meter)
		if err != nil {
			t.Fatal(err)
		}
		defer s.pool.Put(c)
		return at[c.Host]
	}
	store()
	first := present()
	killAtCommit(t, s, first, false)
	store()
	second := present()
	if second == first {
		t.Fatal("the Store is at a node that was killed")
	}
	if _, err := g.Revive(testwait.Context(t)); err != nil {
		t.Fatal(err)
	}
	killAtCommit(t, s, second, true)
	switch _, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}}); {
	case err == nil: // repeated at another node
		stored++
	case !backends.Retryable(err) || errors.Is(err, backends.ErrUnknownOutcome):
		t.Errorf("an enqueue whose node was killed before the commit: %v, want none, or unavailable", err)
	}
	if _, err := g.Revive(testwait.Context(t)); err != nil {
		t.Fatal(err)
	}
	store()
	second = present()
	if err := syscall.Kill(second.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	store()
	if present() == second {
		t.Error("the Store is at a node that is stopped")
	}
	if err := syscall.Kill(second.PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if n := numberOf(t, present(), name, "SELECT COUNT(*) FROM qsidecar_jobs"); n != stored {
		t.Errorf("%d jobs are there, and %d were answered", n, stored)
	}
	if err := g.Whole(testwait.Context(t)); err != nil {
		t.Fatal(err)
	}
}

// killAtCommit kills a node at the next commit: before it is sent, or after it was answered.
func killAtCommit(t *testing.T, s *Store, node *testserver.MySQL, before bool) {
	hook := func(c *session.Conn, now bool) {
		if now != before {
			return
		}
		s.fault.Store(nil)
		if err := node.Kill9(); err != nil {
			t.Error(err)
		}
		c.Bad = true
	}
	s.fault.Store(&hook)
}
