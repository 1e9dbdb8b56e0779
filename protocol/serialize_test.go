package protocol_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestValuesMustBeSerialized checks that a payload or a result that is a value, instead of text, gets an error with the way out.
func TestValuesMustBeSerialized(t *testing.T) {
	for _, value := range []string{`{"to":"ada"}`, `[1]`, `7`, `true`} {
		for _, request := range []string{
			`{"op":"enqueue","queue":"q","payload":%s}`, `{"op":"enqueue","jobs":[{"queue":"q","payload":%s}]}`, `{"op":"ack","lease":"l","result":%s}`,
		} {
			text := fmt.Sprintf(request, value)
			err := protocol.JSON.DecodeRequest([]byte(text), protocol.NewLimits(1<<20), new(protocol.Request))
			if err == nil || !strings.Contains(err.Message, "serialize the value first") || !strings.Contains(err.Message, `":"{\"to\":\"ada\"}"`) {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
}
