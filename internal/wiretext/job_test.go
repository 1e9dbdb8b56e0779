package wiretext

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestJobWithoutItsPayload checks that a payload that a reply left out is not shown as an empty one.
func TestJobWithoutItsPayload(t *testing.T) {
	v := protocol.JobView{ID: "1", Queue: "mail", LeftOut: protocol.Some[int64](9_000_000)}
	if text := Job(v); !strings.Contains(text, "\npayload      (9000000 bytes") {
		t.Errorf("the job is\n%s", text)
	}
	v.LeftOut, v.Payload = protocol.Opt[int64]{}, []byte("hello\x1b")
	if text := Job(v); !strings.HasSuffix(text, "\npayload      hello\ufffd") {
		t.Errorf("the job is\n%s", text)
	}
}
