package mysql

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestCommitAtASilentHost: a host stops answering at a COMMIT, and a new connection leads to another host before a probe
// notices. The COMMIT must not wait for the silent host then.
func TestCommitAtASilentHost(t *testing.T) {
	ownServers(t, func(t *testing.T, kind testserver.Kind) {
		ctx := testwait.Context(t)
		r, address := newReplication(t, kind, false)
		s, old := open(t, Options{URL: address}), r.Source
		if err := errors.Join(enqueue(t, s), r.Whole(ctx), r.Failover(ctx)); err != nil { // now both accept writes
			t.Fatal(err)
		}
		hook := func(_ *session.Conn, before bool) {
			if before {
				s.fault.Store(nil)
				if err := old.Freeze(); err != nil {
					t.Error(err)
				}
			}
		}
		s.fault.Store(&hook)
		answered := make(chan error, 1)
		go func() { answered <- enqueue(t, s) }()
		testwait.Until(t, "the host is silent", func() bool { return s.fault.Load() == nil })
		c, err := s.dialer.Dial(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		testwait.Until(t, "the commit is answered", func() bool {
			if err := enqueue(t, s); err != nil && !backends.Retryable(err) { // makes probes believe that the host answers
				t.Fatal(err)
			}
			return len(answered) > 0
		})
		if err := <-answered; err != nil && !backends.Retryable(err) {
			t.Error(err)
		}
	})
}

// TestLateConnection: while a connection to a host that hangs is being opened, other connections find another host. The late one must
// not lead back to the first host, which another one possibly replaced.
func TestLateConnection(t *testing.T) {
	ownServers(t, func(t *testing.T, kind testserver.Kind) {
		r, address := newReplication(t, kind, false)
		old := r.Source
		dials, goOn := make(chan struct{}, 1), make(chan struct{})
		oldAddress := net.JoinHostPort(old.Host, old.Port)
		var hangs atomic.Bool
		s := open(t, Options{URL: address, wrap: func(c net.Conn) net.Conn {
			if hangs.Load() && c.RemoteAddr().String() == oldAddress { // also a probe of that host
				select {
				case dials <- struct{}{}:
				default:
				}
				<-goOn
			}
			return c
		}})
		if err := errors.Join(enqueue(t, s), r.Whole(t.Context()), r.Failover(testwait.Context(t))); err != nil { // now both accept writes
			t.Fatal(err)
		}
		dial := func() string {
			c, err := s.dialer.Dial(t.Context(), nil)
			if err != nil {
				t.Error(err)
				return ""
			}
			defer c.Close()
			return c.Host
		}
		release := sync.OnceFunc(func() { close(goOn) })
		defer release()
		hangs.Store(true)
		late := make(chan string, 1)
		go func() { late <- dial() }()
		testwait.Receive(t, "a dial of the old source", dials)
		s.dialer.Suspect(oldAddress)
		now := dial()
		release()
		if host := testwait.Receive(t, "the late connection", late); host != now || host == oldAddress {
			t.Errorf("the late connection leads to %s, others lead to %s", host, now)
		}
	})
}
