package protocol_test

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestOldNamesAreErrorsWithTheNewName checks the text of the errors for renamed ops and fields.
func TestOldNamesAreErrorsWithTheNewName(t *testing.T) {
	for request, want := range map[string]string{
		`{"op":"release","queue":"q","ids":["1"]}`:       "the op release is called reclaim now",
		`{"op":"cancel"}`:                                "the op cancel is called cancel_claim now",
		`{"op":"nack","lease":"a","charge":false}`:       "charge: false is called snooze: true now",
		`{"id":3,"op":"nack","lease":"a","charge":true}`: "charge: false is called snooze: true now",
	} {
		var r protocol.Request
		err := protocol.JSON.DecodeRequest([]byte(request), smallPayload, &r)
		if err == nil || err.Code != protocol.CodeBadRequest || err.Message != want {
			t.Errorf("%s: got %v, want bad_request: %s", request, err, want)
		}
		if known := strings.Contains(request, `"nack"`); !known && protocol.Known(r.Op) {
			t.Errorf("%s is still an op", r.Op)
		}
	}
}
