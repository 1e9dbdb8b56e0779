package protocol_test

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestUnknownNamesGetSuggestions checks that a misspelt op or field is answered with the right one.
func TestUnknownNamesGetSuggestions(t *testing.T) {
	for request, want := range map[string]string{
		`{"op":"enqueu","queue":"q"}`:                           `there is no op "enqueu": did you mean enqueue?`,
		`{"op":"PING"}`:                                         `there is no op "PING": did you mean ping?`,
		`{"op":"frobnicate"}`:                                   `there is no op "frobnicate"`,
		`{"op":"enqueue","queue":"q","pyload":"x"}`:             `there is no field "pyload" here: did you mean payload?`,
		`{"op":"enqueue","queue":"q","delay":5}`:                `there is no field "delay" here: did you mean delay_ms?`,
		`{"op":"enqueue","queue":"q","jobs":[{"prio":"1"}]}`:    `there is no field "prio" here: did you mean priority?`,
		`{"OP":"ping"}`:                                         `there is no field "OP" here: did you mean op?`,
		`{"op":"ping","frobnicate":1}`:                          `there is no field "frobnicate" here: ping takes no fields`,
		`{"op":"ack","job":"17"}`:                               `there is no field "job" here: ack takes lease, leases, result, enqueue, claim`,
		`{"op":"ack","lease":"a","lease_id":"4"}`:               `there is no field "lease_id" here: ack takes lease, leases, result, enqueue, claim`,
		`{"op":"enqueue","queue":"q","headers":{"a":"","b":3}}`: `headers: the value of "b" is a number; values are text`,
		`{'op':'ping'}`:                                         `JSON has double quotes, as in {"op":"ping"}`,
		`{"op":"claim","queue":"q","timeout":5}`:                `there is no field "timeout" here: claim takes queue, queues, max, wait_ms, lease_ms, order, weights`,
		`{"op":"peek","queue":"q","ids":17}`:                    `ids must be a list of texts, not a number`,
		`{"op":"enqueue","queue":"q","jobs":{}}`:                `jobs must be a list of maps, not a map`,
		`{"op":"enqueue","queue":"q","run_at":"tomorrow"}`:      `run_at must be a number (milliseconds since 1970, UTC), not text`,
		`{"op":"nack","lease":"a","delay_ms":"5s"}`:             `delay_ms must be a number of milliseconds, not text`,
		`{"op":"nack","lease":"a","delay":5}`:                   `there is no field "delay" here: did you mean delay_ms?`,
		`{"op":"schedule","queue":"q","schedule":{"name":"x","missed":"no","cron":"@daily"}}`: `missed can't be "no": use one or all or skip`,
	} {
		e := protocol.JSON.DecodeRequest([]byte(request), smallPayload, new(protocol.Request))
		if e == nil || !strings.HasSuffix(e.Message, want) {
			t.Errorf("%s gives %v\nwant %s", request, e, want)
		}
	}
}

// TestFirstByteOfAnotherProtocol checks the errors of a connection that doesn't begin with a message.
func TestFirstByteOfAnotherProtocol(t *testing.T) {
	for sent, want := range map[string]string{
		`[{"op":"ping"}]`: "a message is one JSON object, and this begins with a list ([): send each of its objects as a line",
		"GET / HTTP/1.1":  "and not HTTP: send HTTP to the address of admin.listen in the sidecar's config",
		"HTTP/1.1 400 B":  "the first byte, 0x48, begins neither a msgpack frame (0x00 to 0x04) nor a JSON line ({)", // a server of another kind, seen by a client
		"\xff":            "begins neither a msgpack frame (0x00 to 0x04) nor a JSON line ({)",
	} {
		_, _, err := protocol.NewReader(strings.NewReader(sent), 1<<16).Next()
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q gives %v\nwant %s", sent, err, want)
		}
	}
}

// TestHTTPOnTheSocket checks that an HTTP client can read why its request failed.
func TestHTTPOnTheSocket(t *testing.T) {
	r := protocol.NewReader(iotest.OneByteReader(strings.NewReader("POST /api/v1/stats HTTP/1.1\r\n\r\n")), 1<<16)
	_, _, err := r.Next()
	wire, ok := errors.AsType[*protocol.Error](err)
	if !ok {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(string(r.Codec().AppendReply(nil, &protocol.Reply{Error: wire})))), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	if err != nil || resp.StatusCode != http.StatusBadRequest || !resp.Close || !strings.Contains(string(body), `"code":"bad_frame"`) {
		t.Errorf("%+v, %q, %v", resp, body, err)
	}
}
