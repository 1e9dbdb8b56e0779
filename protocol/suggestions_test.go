package protocol_test

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestUnknownNamesGetSuggestions checks that a misspelt op or field is answered with the right one.
func TestUnknownNamesGetSuggestions(t *testing.T) {
	for request, want := range map[string]string{
		`{"op":"enqueu","queue":"q"}`:                        `there is no op "enqueu": did you mean enqueue?`,
		`{"op":"PING"}`:                                      `there is no op "PING": did you mean ping?`,
		`{"op":"frobnicate"}`:                                `there is no op "frobnicate"`,
		`{"op":"enqueue","queue":"q","pyload":"x"}`:          `there is no field "pyload" here: did you mean payload?`,
		`{"op":"enqueue","queue":"q","delay":5}`:             `there is no field "delay" here: did you mean delay_ms?`,
		`{"op":"enqueue","queue":"q","jobs":[{"prio":"1"}]}`: `there is no field "prio" here: did you mean priority?`,
		`{"OP":"ping"}`:                                      `there is no field "OP" here: did you mean op?`,
		`{"op":"ping","frobnicate":1}`:                       `there is no field "frobnicate" here; names are lower case and exact`,
	} {
		e := protocol.JSON.DecodeRequest([]byte(request), smallPayload, new(protocol.Request))
		if e == nil || !strings.HasSuffix(e.Message, want) {
			t.Errorf("%s gives %v\nwant %s", request, e, want)
		}
	}
}
