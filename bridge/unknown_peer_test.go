package bridge

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestPeerOfAnotherNamespace shows what a client of another user and PID namespace can do, and how it is shown: no number
// stands for it in rules, the status or the log, and its connections don't count as those of any other user.
func TestPeerOfAnotherNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		o := options(memory.New())
		o.Limits.PerUser = 1
		o.Sockets[0].Allow = []Rule{
			{Users: []uint32{0, 65534, unixsocket.UnknownUser}, Groups: []uint32{0, 65534}},
			{Ops: []protocol.Op{protocol.OpEnqueue, protocol.OpStatus}}, // of any client
		}
		s := run(t, newFor(t, o, slog.New(slog.NewTextHandler(&log, nil))))
		s.net.peer = &unixsocket.Peer{UID: 65534, Groups: []uint32{65534}, PID: 9}
		s.dial(t).call(`{"op":"peek","queue":"q"}`) // a real user of that number
		s.net.peer = &unixsocket.Peer{UID: unixsocket.UnknownUser}
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		if r := c.refused("forbidden", `{"op":"peek","queue":"q"}`); !strings.Contains(r.Error.Message, "another user namespace") {
			t.Errorf("the refusal: %s", r.Error.Message)
		}
		for _, session := range s.status().Sessions {
			if session.PID.Set != session.UID.Set || session.UID.Set && session.UID.Value != 65534 {
				t.Errorf("status shows user %v, process %v", session.UID, session.PID)
			}
		}
		if r := s.dial(t).refused("busy", `{"op":"ping"}`); !strings.Contains(r.Error.Message, "all users of other user namespaces together have 1") {
			t.Errorf("the refusal: %s", r.Error.Message)
		}
		s.stop()
		synctest.Wait()
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "event=request_forbidden") && (strings.Contains(line, "uid=") || strings.Contains(line, "pid=")) || strings.Contains(line, "4294967295") {
				t.Errorf("logged %s", line)
			}
		}
		if !strings.Contains(log.String(), "event=request_forbidden") {
			t.Error("the refusal wasn't logged")
		}
	})
}
