package session

import (
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/bridge/internal/permission"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// planned is a sidecar without databases, whose plan the test sets.
type planned struct {
	Sidecar
	plan atomic.Pointer[plan.Plan]
}

func (p *planned) Plan() *plan.Plan { return p.plan.Load() }

// reload replaces the rights.
func (p *planned) reload(rights map[string][]permission.Rule) {
	p.plan.Store(plan.New(plan.Settings{MaxFrame: protocol.DefaultMaxFrame, Rights: rights}))
}

func newPlanned(rights map[string][]permission.Rule) (*Shared, *planned) {
	p := &planned{}
	p.reload(rights)
	return &Shared{Sidecar: p, Log: slog.New(slog.DiscardHandler)}, p
}

// piped is a connection whose client never hangs up.
type piped struct{ net.Conn }

func (piped) CloseWrite() error                          { return nil }
func (piped) Peer() (*unixsocket.Peer, error)            { return nil, nil }
func (piped) OnHangUp(func()) (forget func(), err error) { return func() {}, nil }
func (piped) HungUp() bool                               { return false }

// TestEndingSessionKeepsNoBuffer shows that a session which waits for its client to hang up has no buffer for input any
// more: its part of the limit is free already.
func TestEndingSessionKeepsNoBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared, p := newPlanned(map[string][]permission.Rule{"s": nil})
		near, far := net.Pipe()
		s := New(shared, p.Plan(), far, far, piped{far}, "s", nil)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Serve()
		}()
		if _, err := io.WriteString(near, "no JSON\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := near.Read(make([]byte, 1<<10)); err != nil { // the error; the session lingers
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case <-ended:
			t.Error("the session does not linger")
		default:
		}
		if s.reader != nil {
			t.Error("it keeps its buffer")
		}
		_ = near.Close() // never fails
		<-ended
	})
}

// TestNoRightsWithoutASocket shows that a reload that removes a socket gives its connections no new rights. Requests
// that they sent before are checked against the old rules. Before, they were not checked.
func TestNoRightsWithoutASocket(t *testing.T) {
	rights := map[string][]permission.Rule{
		"other": nil,
		"first": {{Ops: []protocol.Op{protocol.OpEnqueue}, Queues: []string{"mail"}}},
	}
	shared, p := newPlanned(rights)
	asked := New(shared, p.Plan(), nil, nil, nil, "first", &unixsocket.Peer{})
	silent := New(shared, p.Plan(), nil, nil, nil, "first", &unixsocket.Peer{})
	asked.granted()
	p.reload(map[string][]permission.Rule{"other": nil})
	late := New(shared, p.Plan(), nil, nil, nil, "first", &unixsocket.Peer{})
	for _, s := range []*Session{asked, silent} {
		if g := s.granted(); !g.Queue(protocol.OpEnqueue, "mail") || g.Queue(protocol.OpEnqueue, "other") || g.Op(protocol.OpClaim) || g.Everywhere(protocol.OpEnqueue) {
			t.Errorf("without its socket a session has the rights %+v", g)
		}
	}
	if g := late.granted(); g.All || g.Op(protocol.OpEnqueue) {
		t.Errorf("a session on a socket that the plan does not have has the rights %+v", g)
	}
	p.reload(map[string][]permission.Rule{"first": nil})
	if !asked.granted().All {
		t.Error("a session does not have the rights of the new rules of its socket")
	}
}

// TestUnknownUserHasNoRights shows that a client whose user the kernel does not report (on systems other than Linux) has
// no rights if there are rules.
func TestUnknownUserHasNoRights(t *testing.T) {
	shared, p := newPlanned(map[string][]permission.Rule{"s": {{Ops: []protocol.Op{protocol.OpPing}}}})
	if g := New(shared, p.Plan(), nil, nil, nil, "s", nil).granted(); g.Op(protocol.OpPing) || g.All {
		t.Errorf("it has the rights %+v", g)
	}
	if !New(shared, p.Plan(), nil, nil, nil, "", nil).granted().All {
		t.Error("who started the sidecar (stdio) has not all rights")
	}
}
