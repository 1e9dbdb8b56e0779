package bridge

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestLostSocket removes the files of two sockets while connections are open. The sidecar notices it by itself, is unhealthy
// until the files are back, and keeps the connections. A path that another program took stays that program's.
func TestLostSocket(t *testing.T) {
	o := unixOptions(t, memory.New())
	other := filepath.Join(shortDir(t), "other.sock")
	o.Sockets = append(o.Sockets, Socket{Path: other})
	s := start(t, o)
	if h := s.Health(); h.Lost != nil {
		t.Fatalf("at the start: %+v", h.Lost)
	}
	held := s.dial(t)
	held.call(`{"op":"enqueue","queue":"q"}`)
	lease := held.claim1("q").Lease

	neighbour, err := net.Listen("unix", other+".2")
	if err != nil {
		t.Fatal(err)
	}
	defer neighbour.Close()
	if err := os.Rename(other+".2", other); err != nil { // first, because the other file is back within a second
		t.Fatal(err)
	}
	if h := s.Health(); len(h.Lost) != 1 || h.Lost[0].Path != other {
		t.Errorf("with a path that another program has: %+v", h.Lost)
	}
	if err := os.RemoveAll(filepath.Dir(s.path)); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the removed socket is back", func() bool {
		h := s.Health()
		return len(h.Lost) == 1 && strings.Contains(h.Lost[0].Err.Error(), "another program")
	})
	status := s.status()
	if status.Sockets[0].Error != "" || !strings.Contains(status.Sockets[1].Error, "another program") {
		t.Errorf("status: %+v", status.Sockets)
	}
	s.dial(t).call(`{"op":"ping"}`)
	held.call(`{"op":"ack","lease":%q}`, lease)

	if err := neighbour.Close(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the other socket is back", func() bool { return s.Health().Lost == nil })
	s.path = other
	s.dial(t).call(`{"op":"ping"}`)

	s.reloads(t, with(o, func(o *Options) { o.Sockets = o.Sockets[1:] }))
	if h := s.Health(); h.Lost != nil {
		t.Errorf("after a reload without the first socket: %+v", h.Lost)
	}
}
