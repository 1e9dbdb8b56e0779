package bridge

import (
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestNoRightsWithoutASocket shows that a reload that removes a socket gives its connections no new rights. Requests
// that they sent before are checked against the old rules. Before, they were not checked.
func TestNoRightsWithoutASocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		first := filepath.Join(filepath.Dir(o.Sockets[0].Path), "first.sock")
		both := with(o, func(o *Options) {
			o.Sockets = append(o.Sockets, Socket{Path: first, Allow: []Rule{me([]protocol.Op{protocol.OpEnqueue}, "mail")}})
		})
		s := start(t, both)
		s.path = first
		asked, silent := s.dial(t), s.dial(t)
		asked.refused("forbidden", `{"op":"ping"}`)
		eventually(t, func() bool { return len(s.sessionsOf(first)) == 2 })
		sessions := s.sessionsOf(first)
		s.reloads(t, o)
		for _, sess := range sessions {
			if g := sess.granted(); !g.Queue(protocol.OpEnqueue, "mail") || g.Queue(protocol.OpEnqueue, "other") || g.Op(protocol.OpClaim) || g.Everywhere(protocol.OpEnqueue) {
				t.Errorf("without its socket a session has the rights %+v", g)
			}
		}
		_ = silent
	})
}

func (s *sidecar) sessionsOf(socket string) (all []*session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sess := range s.sessions {
		if sess.socket == socket {
			all = append(all, sess)
		}
	}
	return all
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

// TestUnknownUserHasNoRights shows that a client whose user the kernel does not report (on systems other than Linux) has
// no rights if there are rules.
func TestUnknownUserHasNoRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.Sockets[0].Allow = []Rule{{Ops: []protocol.Op{protocol.OpPing}}}
		s := start(t, o)
		sess := newSession(s.Bridge, s.plan.Load(), nil, nil, nil, &o.Sockets[0], nil)
		if g := sess.granted(); g.Op(protocol.OpPing) || g.All {
			t.Errorf("it has the rights %+v", g)
		}
		sess = newSession(s.Bridge, s.plan.Load(), nil, nil, nil, &Socket{}, nil)
		if !sess.granted().All {
			t.Error("who started the sidecar (stdio) has not all rights")
		}
	})
}
