package mysql

import (
	"fmt"
	"net"
	"net/url"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestGaleraHosts: an address names all nodes of a cluster. The Store goes on at another node when the present one is killed, and
// when it stops answering without closing its connections. Each job that was answered is there, once.
func TestGaleraHosts(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	g, err := testserver.StartGalera(testwait.Context(t), 3, testserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
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
			_, err := s.Commit(t.Context(), backends.Batch{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Key: fmt.Sprint(stored)}}}}})
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
	if err := first.Kill9(); err != nil {
		t.Fatal(err)
	}
	store()
	second := present()
	if second == first {
		t.Fatal("the Store is at a node that was killed")
	}
	if err := first.Restart(testwait.Context(t)); err != nil {
		t.Fatal(err)
	}
	if err := g.Whole(testwait.Context(t)); err != nil {
		t.Fatal(err)
	}
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
