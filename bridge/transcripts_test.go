package bridge

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/protocol"
	"github.com/qsidecar/qsidecar/protocol/transcript"
)

// TestTranscripts replays every conversation of the protocol against a sidecar.
func TestTranscripts(t *testing.T) {
	all, err := transcript.Load("../protocol/testdata/transcripts")
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range all {
		for _, codec := range tr.Codecs() {
			name := tr.Name + "/json"
			if codec == protocol.Msgpack {
				name = tr.Name + "/msgpack"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := serverFor(t, tr.Needs)
					transcript.Run(t, tr, codec, func(t testing.TB) net.Conn { return s.dial(t).conn })
				})
			})
		}
	}
}

// serverFor starts a sidecar as the transcript needs it.
func serverFor(t *testing.T, needs []string) *sidecar {
	db := &faulty{Backend: memory.New()}
	o := options(db)
	drain := false
	var control Control
	for _, need := range needs {
		switch need {
		case "named-queues":
			o.Queues = map[string]Queue{"a": {}, "b": {}}
		case "forbidden":
			o.Sockets[0].Allow = []Rule{{Users: []uint32{uint32(os.Getuid())}, Ops: []protocol.Op{protocol.OpEnqueue, protocol.OpStats}, Queues: []string{"open"}}}
		case "config":
			control = unchanged{}
		case "small-frames":
			o.MaxFrame = 64 << 10
		case "fault-unavailable":
			db.commit.Store(&errDown)
		case "fault-internal":
			err := errors.New("a bug")
			db.commit.Store(&err)
		case "fault-unknown-outcome":
			lose := func(backends.CommitContent, backends.Results) error { return backends.ErrUnknownOutcome }
			db.after.Store(&lose)
		case "draining":
			drain = true
		default:
			t.Fatalf("the transcript needs %q, which this test does not know", need)
		}
	}
	b := newFor(t, o, testLog(t))
	b.SetControl(control)
	s := run(t, b)
	if drain {
		holder := s.dial(t) // keeps the drain from ending
		holder.call(`{"op":"enqueue","queue":"held"}`)
		holder.claim1("held")
		s.stop()
		eventually(t, func() bool {
			return s.pipeline().Snapshot().Stopped
		})
	}
	return s
}

// unchanged is a Control whose config has not changed.
type unchanged struct{}

func (unchanged) Reload(context.Context) ([]string, string, error) {
	return nil, "c.yaml describes the running config", nil
}
func (unchanged) Report(_ context.Context, op protocol.Op) (*protocol.Reply, error) {
	if op == protocol.OpCheck {
		return &protocol.Reply{Findings: []protocol.Finding{{Database: "main", Severity: "info", Topic: "server", Text: "all is well"}}}, nil
	}
	return &protocol.Reply{Config: &protocol.Config{Settings: []string{"log.level: info"}, Reloads: []protocol.Reload{{At: 1, Generation: 1, Changes: []string{}}}}}, nil
}
func (unchanged) Config() (int64, error, time.Time) { return 1, nil, time.Time{} }
func (unchanged) Admin() string                     { return "127.0.0.1:9464" }
func (unchanged) Page() string                      { return "https://ops.example.com/qsidecar/" }
