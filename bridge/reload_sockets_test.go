package bridge

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

func TestReloadOfSocketFiles(t *testing.T) {
	o := unixOptions(t, memory.New())
	first := o.Sockets[0].Path
	second := filepath.Join(shortDir(t), "2.sock")
	s := start(t, o)
	stays := s.dial(t)
	both := with(o, func(o *Options) {
		o.Sockets[0].Mode = 0o600
		o.Sockets = append(o.Sockets, Socket{Path: second})
	})
	s.reloads(t, both)
	if info, err := os.Stat(first); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v (%v), want the new one", info.Mode(), err)
	}
	stays.call(`{"op":"ping"}`)
	s.path = second
	other := s.dial(t)
	s.reloads(t, with(both, func(o *Options) { o.Sockets = o.Sockets[1:] }))
	if _, err := stays.line(); err == nil {
		t.Error("a connection of a socket that is gone is open")
	}
	if _, err := os.Lstat(first); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket that is not configured any more is there: %v", err)
	}
	other.call(`{"op":"ping"}`)
}

// TestReloadOfSockets shows that the jobs of connections whose socket a reload removed are released after the restart
// grace, except those that another connection took over in that time.
func TestReloadOfSockets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const grace = 10 * time.Second
		o := options(memory.New())
		o.Databases["main"] = Database{Backend: o.Databases["main"].Backend, RestartGrace: grace}
		second := inMemory + "2.sock"
		s := start(t, o)
		goes := s.dial(t)
		goes.call(`{"op":"enqueue","jobs":[{"queue":"a"},{"queue":"a"}]}`)
		kept, dropped := goes.claim1("a"), goes.claim1("a")
		both := with(o, func(o *Options) { o.Sockets = append(o.Sockets, Socket{Path: second}) })
		s.reloads(t, both)
		s.path = second
		other := s.dial(t)
		other.call(`{"op":"extend","lease":%q,"bind":true}`, kept.Lease)
		s.reloads(t, with(both, func(o *Options) { o.Sockets = o.Sockets[1:] }))
		if _, err := goes.line(); err == nil {
			t.Error("a connection of a socket that is gone is open")
		}
		began := time.Now()
		if again := other.claim1("a"); again.ID != dropped.ID || again.Attempt != 2 {
			t.Errorf("the claim got %+v, want the job that the closed connection held, a second time", again)
		}
		if took := time.Since(began); took < grace || took > grace+longestLinger {
			t.Errorf("it came after %v, want the restart grace of %v", took, grace)
		}
		other.call(`{"op":"ack","lease":%q}`, kept.Lease)
	})
}

// TestStopAfterASocketWasRemoved shows that a drain does not wait for the jobs of connections that a reload closed, and
// that the leases stay valid.
func TestStopAfterASocketWasRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		o, second := options(db), inMemory+"2.sock"
		both := with(o, func(o *Options) { o.Sockets = append(o.Sockets, Socket{Path: second}) })
		s := start(t, both)
		store(t, db, "q")
		c := s.dial(t)
		c.claim1("q")
		s.reloads(t, with(both, func(o *Options) { o.Sockets = o.Sockets[1:] }))
		if _, err := c.line(); err == nil {
			t.Error("a connection of a socket that is gone is open")
		}
		s.stop()
		eventually(t, s.idle)
		if n := s.config.Load().databases[0].Leases(); n != 1 {
			t.Errorf("%d claims are known, want 1", n)
		}
	})
}

// TestReloadOfASocketsName shows that another path to the same socket is not reported as another sidecar's.
func TestReloadOfASocketsName(t *testing.T) {
	o := unixOptions(t, memory.New())
	s := start(t, o)
	way := filepath.Join(shortDir(t), "way")
	if err := os.Symlink(filepath.Dir(s.path), way); err != nil {
		t.Fatal(err)
	}
	err := s.Reload(with(o, func(o *Options) { o.Sockets[0].Path = filepath.Join(way, filepath.Base(s.path)) }))
	if err == nil || !strings.Contains(err.Error(), "this sidecar serves it already, as "+s.path) {
		t.Errorf("Reload: %v", err)
	}
	s.dial(t).call(`{"op":"ping"}`)
}

// deaf is a client that sends requests until the sidecar reads no more of them, and reads no reply.
func (s *sidecar) deaf(t *testing.T, path, line string) {
	t.Helper()
	conn := s.net.dial(t, path)
	t.Cleanup(func() { conn.Close() })
	all := []byte(strings.Repeat(line+"\n", 1000))
	for {
		if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(all); err != nil {
			return
		}
	}
}

// TestCloseOfClientsThatDoNotRead shows that a client that reads none of its replies does not keep the sidecar from ending,
// or from removing a socket. Before, it did indefinitely.
func TestCloseOfClientsThatDoNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		second := filepath.Join(filepath.Dir(o.Sockets[0].Path), "second.sock")
		s := start(t, with(o, func(o *Options) { o.Sockets = append(o.Sockets, Socket{Path: second}) }))
		for _, line := range []string{`{"op":"ping"}`, `{"op":"status","id":1}`, `{"op":"stats","id":2}`} {
			s.deaf(t, second, line)
			s.deaf(t, s.path, line)
		}
		s.reloads(t, o)
		eventually(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.sessions) == 3
		})
		s.stop()
		s.Abort() // the second signal
		began := time.Now()
		if err := s.wait(t); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > longestLinger {
			t.Errorf("aborted, it ended after %v", took)
		}
	})
}

// TestLateConnectionOfARemovedSocket shows that a connection that was accepted while a reload removed its socket
// is closed like the others. Before, it stayed open, with all rights.
func TestLateConnectionOfARemovedSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		gone := filepath.Join(filepath.Dir(o.Sockets[0].Path), "gone.sock")
		s := start(t, with(o, func(o *Options) { o.Sockets = append(o.Sockets, Socket{Path: gone}) }))
		s.reloads(t, o)
		if sess, full := s.open(nil, nil, nil, gone, &unixsocket.Peer{}); sess != nil || full != nil {
			t.Errorf("a session on a socket that is not configured any more: %v, %v", sess, full)
		}
	})
}
