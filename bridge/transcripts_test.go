package bridge

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/protocol"
	"github.com/qsidecar/qsidecar/protocol/transcript"
)

// notYet lists the transcripts whose server does not exist yet, and why.
var notYet = map[string]string{
	"forbidden": "permissions of a socket come with the config issue",
}

// TestTranscripts replays every conversation of the protocol against a sidecar.
func TestTranscripts(t *testing.T) {
	all, err := transcript.Load("../protocol/testdata/transcripts")
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range all {
		if reason := unmet(tr.Needs); reason != "" {
			t.Logf("%s: not replayed: %s", tr.Name, reason)
			continue
		}
		for _, codec := range tr.Codecs() {
			name := tr.Name + "/json"
			if codec == protocol.Msgpack {
				name = tr.Name + "/msgpack"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := serverFor(t, tr.Needs)
				transcript.Run(t, tr, codec, func(t testing.TB) net.Conn { return s.dial(t).conn })
			})
		}
	}
}

func unmet(needs []string) string {
	for _, n := range needs {
		if reason := notYet[n]; reason != "" {
			return reason
		}
	}
	return ""
}

// serverFor starts a sidecar as the transcript needs it.
func serverFor(t *testing.T, needs []string) *sidecar {
	db := &faulty{Backend: memory.New()}
	o := options(t, db)
	o.Databases["main"] = Database{Backend: db, HostLease: 10 * time.Second}
	drain := false
	for _, need := range needs {
		switch need {
		case "named-queues":
			o.Queues = map[string]Queue{"a": {}, "b": {}}
		case "small-frames":
			o.MaxFrame = 64 << 10
		case "fault-unavailable":
			db.commit.Store(&errDown)
		case "fault-internal":
			err := errors.New("a bug")
			db.commit.Store(&err)
		case "fault-unknown-outcome":
			lose := func(backends.Batch, backends.Results) error { return backends.ErrUnknownOutcome }
			db.after.Store(&lose)
		case "draining":
			drain = true
		default:
			t.Fatalf("the transcript needs %q, which this test does not know", need)
		}
	}
	s := start(t, o)
	if drain {
		holder := s.dial(t) // keeps the drain from ending
		holder.call(`{"op":"enqueue","queue":"held"}`)
		holder.claim1("held")
		s.stop()
		eventually(t, func() bool {
			b := s.plan.Load().banks[0].broker
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.halted != nil
		})
	}
	return s
}
