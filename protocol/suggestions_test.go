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
		`{"op":"enqueu","queue":"q"}`:                                                         `there is no op "enqueu": did you mean enqueue?`,
		`{"op":"PING"}`:                                                                       `there is no op "PING": did you mean ping?`,
		`{"op":"frobnicate"}`:                                                                 `there is no op "frobnicate"`,
		`{"op":"enqueue","queue":"q","pyload":"x"}`:                                           `there is no field "pyload" here: did you mean payload?`,
		`{"op":"enqueue","queue":"q","delay":5}`:                                              `there is no field "delay" here: did you mean delay_ms?`,
		`{"op":"enqueue","queue":"q","jobs":[{"prio":"1"}]}`:                                  `there is no field "prio" here: did you mean priority?`,
		`{"OP":"ping"}`:                                                                       `there is no field "OP" here: did you mean op?`,
		`{"op":"ping","frobnicate":1}`:                                                        `there is no field "frobnicate" here: ping takes no fields`,
		`{"op":"ack","job":"17"}`:                                                             `there is no field "job" here: ack takes lease, leases, result, enqueue, claim`,
		`{"op":"ack","lease":"a","lease_id":"4"}`:                                             `there is no field "lease_id" here: ack takes lease, leases, result, enqueue, claim`,
		`{"op":"enqueue","queue":"q","headers":{"a":"","b":3}}`:                               `headers: the value of "b" is a number; values are text`,
		`{'op':'ping'}`:                                                                       `JSON has double quotes, as in {"op":"ping"}`,
		`{"op":"claim","queue":"q","timeout":5}`:                                              `there is no field "timeout" here: claim takes queue, queues, max, wait_ms, lease_ms, order, weights`,
		`{"op":"peek","queue":"q","ids":17}`:                                                  `ids must be a list of texts, not a number`,
		`{"op":"enqueue","queue":"q","jobs":{}}`:                                              `jobs must be a list of maps, not a map`,
		`{"op":"enqueue","queue":"q","run_at":"tomorrow"}`:                                    `run_at must be a number (milliseconds since 1970, UTC), not text`,
		`{"op":"nack","lease":"a","delay_ms":"5s"}`:                                           `delay_ms must be a number of milliseconds, not text`,
		`{"op":"nack","lease":"a","delay":5}`:                                                 `there is no field "delay" here: did you mean delay_ms?`,
		`{"op":"push","queue":"q"}`:                                                           `there is no op "push": did you mean enqueue?`,
		`{"op":"complete","lease":"a"}`:                                                       `there is no op "complete": did you mean ack?`,
		`{"op":"enqueue","queue":"q","body":"x"}`:                                             `there is no field "body" here: did you mean payload?`,
		`{"op":"enqueue","queue":"q","max_retries":5}`:                                        `there is no field "max_retries" here: did you mean max_attempts?`,
		`{"op":"enqueue","jobs":[{"queue":"q","data":"x"}]}`:                                  `there is no field "data" here: did you mean payload?`,
		`{"op":"peek","queue":"q","limit":5}`:                                                 `there is no field "limit" here: did you mean max?`,
		`{"op":"progress","lease":"a","percent":5}`:                                           `there is no field "percent" here: did you mean done?`,
		`{"op":"limit","queue":"q","concurrency":5}`:                                          `there is no field "concurrency" here: did you mean max_claimed?`,
		`{"op":"purge","queue":"q","limit":5}`:                                                `there is no field "limit" here: purge takes queue, state`,
		`{"method":"enqueue"}`:                                                                `there is no field "method" here: did you mean op?`,
		`{"op":"pause","all":true}`:                                                           `pause takes no field "all": it takes queue`,
		`{"op":"stats","queues":["q"]}`:                                                       `stats takes no field "queues": it takes queue`,
		`{"op":"ping","queue":"q"}`:                                                           `ping takes no field "queue": it takes no fields`,
		`{"op":"claim","queue":["a","b"]}`:                                                    `queue must be text, not a list: name several in queues`,
		`{"op":"enqueue","queue":["a","b"]}`:                                                  `queue must be text, not a list`,
		`{"op":"purge","queue":"q"}`:                                                          `state is missing: use ready, blocked, scheduled, done or dead`,
		`{"op":"delete","queue":"q","id":"17"}`:                                               `ids is missing; id is that of the request: name jobs as in "ids":["17"]`,
		`{"op":"cancel","queue":"q","id":"17"}`:                                               `ids is missing; id is that of the request: name jobs as in "ids":["17"]`,
		`{"op":"delete","queue":"q","id":17}`:                                                 `ids is missing`,
		`{"op":"ping",}`:                                                                      `after offset 12; is a comma too many?`,
		`{"op":"enqueue","queue":"q","run_at":1790000000}`:                                    `run_at 1790000000 is in January 1970: write milliseconds since 1970, not seconds`,
		`{"op":"enqueue","jobs":[{"queue":"q","run_at":99999999999}]}`:                        `run_at 99999999999 is in March 1973: write milliseconds since 1970, not seconds`,
		`{"op":"change","queue":"q","ids":["1"],"run_at":1790000000}`:                         `run_at 1790000000 is in January 1970: write milliseconds since 1970, not seconds`,
		`{"op":"enqueue","queue":"q","start_before":1790000000}`:                              `start_before 1790000000 is in January 1970: write milliseconds since 1970, not seconds`,
		`{"op":"ack","lease":"a","enqueue":[{"queue":"q","run_at":1790000000}]}`:              `run_at 1790000000 is in January 1970: write milliseconds since 1970, not seconds`,
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
		"HTTP/1.1 400 B":  "the first byte, 0x48, begins neither a msgpack frame (0x00 to 0x04) nor a JSON line such as {\"op\":\"ping\"}", // a server of another kind, seen by a client
		"\xef\xbb\xbf{}":  "a byte order mark precedes the first message: send UTF-8 without it",
		"\x16\x03\x01":    "this looks like TLS, which the socket doesn't speak: connect without it",
		"enqueue mail x":  "the first byte, 0x65, begins neither a msgpack frame (0x00 to 0x04) nor a JSON line such as {\"op\":\"ping\"}",
		"\xff":            "begins neither a msgpack frame (0x00 to 0x04) nor a JSON line such as {\"op\":\"ping\"}",
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
