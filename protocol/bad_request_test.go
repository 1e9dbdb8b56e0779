package protocol_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/protocol"
	"github.com/qsidecar/qsidecar/protocol/transcript"
)

func manyHeaders(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"h%d":"v"`, i)
	}
	return "{" + b.String()[1:] + "}"
}

func manyOf(s string, n int) string { return "[" + strings.Repeat(s+",", n-1) + s + "]" }

// smallPayload sets a payload limit that requests in the table can exceed.
var smallPayload = protocol.Limits{MaxFrame: 1 << 20, MaxPayload: 1023, MaxReply: 8 << 20}

// expand replaces the placeholders of a request by long texts.
func expand(s string) string {
	for _, n := range []int{257, 1024, 1364} {
		s = strings.ReplaceAll(s, fmt.Sprintf("{%d}", n), strings.Repeat("x", n))
	}
	return s
}

func TestBadRequests(t *testing.T) {
	for _, test := range badRequests {
		request := expand(test.request)
		packed, err := transcript.ToMsgpack(parse(t, request))
		if err != nil {
			t.Fatalf("%s: %v", test.request, err)
		}
		for codec, body := range map[protocol.Codec][]byte{protocol.JSON: []byte(request), protocol.Msgpack: packed} {
			var r protocol.Request
			checkError(t, fmt.Sprintf("%v %.120s", codec, test.request), codec.DecodeRequest(body, smallPayload, &r), test)
		}
	}
}

func parse(t *testing.T, s string) (m map[string]any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	if err := d.Decode(&m); err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return m
}

func checkError(t *testing.T, what string, got *protocol.Error, want bad) {
	t.Helper()
	if want.code == "" {
		if got != nil {
			t.Errorf("%s: got %v, want no error", what, got)
		}
		return
	}
	if got == nil {
		t.Errorf("%s: got no error, want %s", what, want.code)
		return
	}
	index := int64(-1)
	if i, ok := got.Index.Get(); ok {
		index = i
	}
	if got.Code != want.code || got.Field != want.field || index != want.index {
		t.Errorf("%s: got %v (field %q, index %d), want %s (field %q, index %d)",
			what, got, got.Field, index, want.code, want.field, want.index)
	}
	if got.Message == "" || len(got.Message) > 400 {
		t.Errorf("%s: the message has %d bytes: %q", what, len(got.Message), got.Message)
	}
}

// TestErrorsKeepTheID checks that the reply to any invalid request carries its id, wherever the id
// is in the request.
func TestErrorsKeepTheID(t *testing.T) {
	for _, test := range badRequests {
		if test.field == "id" || test.code == "" {
			continue
		}
		request := expand(test.request)
		first := strings.Replace(request, "{", `{"id":"my id",`, 1)
		last := request[:len(request)-1] + `,"id":"my id"}`
		if request == "{}" {
			first, last = `{"id":"my id"}`, `{"id":"my id"}`
		}
		packed, err := transcript.ToMsgpack(parse(t, first))
		if err != nil {
			t.Fatal(err)
		}
		for i, body := range [][]byte{[]byte(first), []byte(last), packed} {
			codec := []protocol.Codec{protocol.JSON, protocol.JSON, protocol.Msgpack}[i]
			var r protocol.Request
			if err := codec.DecodeRequest(body, smallPayload, &r); err == nil {
				t.Errorf("%v %.120s: got no error", codec, body)
			}
			if r.ID != protocol.TextID("my id") {
				t.Errorf("%v %.120q: got the id %v", codec, body, r.ID)
			}
		}
	}
}

// TestBadJSON checks lines with mistakes that only JSON allows.
func TestBadJSON(t *testing.T) {
	for _, test := range []bad{
		{``, "bad_request", "", -1},
		{`hello`, "bad_request", "", -1},
		{`[]`, "bad_request", "", -1},
		{`"ping"`, "bad_request", "", -1},
		{`null`, "bad_request", "", -1},
		{`{`, "bad_request", "", -1},
		{`{"op"`, "bad_request", "op", -1},
		{`{"op":"ping"`, "bad_request", "", -1},
		{`{"op":"ping",}`, "bad_request", "", -1},
		{`{"op":"ping"}}`, "bad_request", "", -1},
		{`{"op":"ping"}{"op":"ping"}`, "bad_request", "", -1},
		{`{"op":"ping"} x`, "bad_request", "", -1},
		{`{op:"ping"}`, "bad_request", "", -1},
		{`{'op':'ping'}`, "bad_request", "", -1},
		{`{"op":"ping","id":01}`, "bad_request", "", -1},
		{`{"op":"ping","id":+1}`, "bad_request", "id", -1},
		{`{"op":"ping","id":NaN}`, "bad_request", "id", -1},
		{`{"op":"ping","id":1.0}`, "bad_request", "id", -1},
		{`{"op":"ping","id":1e3}`, "bad_request", "id", -1},
		{`{"op":"ping","op":"ping"}`, "bad_request", "op", -1},
		{`{"op":"ping","\u006fp":"ping"}`, "bad_request", "op", -1},
		{`{"op":"ping","id":null,"id":1}`, "bad_request", "id", -1},
		{`{"OP":"ping"}`, "bad_request", "OP", -1},
		{`{"op":"enqueue","queue":"q","payload":"a","payload_b64":"YQ=="}`, "bad_request", "payload", -1},
		{`{"op":"enqueue","queue":"q","payload_b64":"YQ"}`, "bad_request", "payload", -1},
		{`{"op":"enqueue","queue":"q","payload_b64":"YR=="}`, "bad_request", "payload", -1}, // trailing bits
		{`{"op":"enqueue","queue":"q","payload_b64":"_w=="}`, "bad_request", "payload", -1}, // URL alphabet
		{`{"op":"enqueue","queue":"q","payload_b64":"YWFh\nYWFh"}`, "bad_request", "payload", -1},
		{`{"op":"enqueue","queue":"q","payload_b64":7}`, "bad_request", "payload", -1},
		{`{"op":"enqueue","queue":"q","headers":{"a":"1","a":"2"}}`, "bad_request", "headers", -1},
		{`{"op":"enqueue","jobs":[{"queue":"q","queue":"q"}]}`, "bad_request", "queue", 0},
		{`{"op":"enqueue","queue":"q","payload":"` + "\xff" + `"}`, "bad_request", "payload", -1},
		{`{"op":"enqueue","queue":"q","payload":"` + "\xed\xa0\x80" + `"}`, "bad_request", "payload", -1},
		{`{"op":"enqueue","queue":"q","payload":"\ud800"}`, "bad_request", "payload", -1},
		{`{"op":"enqueue","queue":"q","payload":"\udc00\ud800"}`, "bad_request", "payload", -1},
		{`{"op":"enqueue","queue":"q","payload":"` + "a\tb" + `"}`, "bad_request", "payload", -1},
		{`{"op":"enqueue","queue":"q","headers":{"` + "\xff" + `":"1"}}`, "bad_request", "headers", -1},
		{`{"` + "\xff" + `":1,"op":"ping"}`, "bad_request", "", -1},
		{`{"x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `,"op":"ping"}`, "bad_request", "", -1},
		{`{"op":"ping"` + strings.Repeat(`,"y":1`, 70) + `}`, "bad_request", "", -1},
	} {
		var r protocol.Request
		got := protocol.JSON.DecodeRequest([]byte(test.request), smallPayload, &r)
		checkError(t, fmt.Sprintf("%.120q", test.request), got, test)
	}
}

// TestBadMsgpack checks bodies with mistakes that only msgpack allows.
func TestBadMsgpack(t *testing.T) {
	ping := "\xa2op\xa4ping"
	for _, test := range []bad{
		{"", "bad_frame", "", -1},
		{"\x01", "bad_frame", "", -1},
		{"\xc0", "bad_frame", "", -1},
		{"\x90", "bad_frame", "", -1},
		{"\xa1x", "bad_frame", "", -1},
		{"\xc1", "bad_frame", "", -1},
		{"\xdd\xff\xff\xff\xff", "bad_frame", "", -1},
		{"\xdf\xff\xff\xff\xff", "bad_frame", "", -1},
		{"\x81" + ping + "\xc0", "bad_frame", "", -1},
		{"\x82" + ping, "bad_frame", "", -1},
		{"\x81\xa2op\xdb\xff\xff\xff\xffping", "bad_frame", "", -1},
		{"\x81\xa2op\xc6\xff\xff\xff\xffping", "bad_frame", "", -1},
		{"\x81\xa2op\xc9\xff\xff\xff\xff\x01", "bad_frame", "", -1},
		{strings.Repeat("\x91", 1<<20), "bad_frame", "", -1},
		{strings.Repeat("\x81\xa1x", 1<<18), "bad_frame", "", -1},
		{"\x82" + ping + ping, "bad_request", "op", -1},
		{"\x82" + ping + "\x01\x02", "bad_request", "", -1},
		{"\x82" + ping + "\xc4\x02id\x02", "bad_request", "", -1}, // a key of bytes
		{"\x82" + ping + "\xc0\x02", "bad_request", "", -1},
		{"\x82" + ping + "\x81\x01\x02\x03", "bad_request", "", -1},
		{"\x82" + ping + "\xa1\xff\x01", "bad_request", "�", -1},
		{"\x81\xa2op\xc4\x04ping", "bad_request", "op", -1},
		{"\x82" + ping + "\xa2id\xca\x3f\x80\x00\x00", "bad_request", "id", -1}, // 1.0
		{"\x82" + ping + "\xa2id\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "bad_request", "id", -1},
		{"\x82" + ping + "\xa2id\xa1\xff", "bad_request", "id", -1},
		{"\x82" + ping + "\xa2id\xd4\x01\x02", "bad_request", "id", -1},                                                   // an extension
		{"\x82" + ping + "\xa2id\xd6\xff\x00\x00\x00\x00", "bad_request", "id", -1},                                       // a timestamp
		{"\x83\xa2op\xa7enqueue\xa5queue\xa1q\xabpayload_b64\xa0", "bad_request", "payload_b64", -1},                      // only for JSON
		{"\x83\xa2op\xa7enqueue\xa5queue\xa1q\xa7headers\x82\xa1a\xa11\xa1a\xa12", "bad_request", "headers", -1},          // a key twice
		{"\x83\xa2op\xa7enqueue\xa5queue\xa1q\xa7headers\x81\xc4\x01a\xa11", "bad_request", "headers", -1},                // a key of bytes
		{"\x83\xa2op\xa7enqueue\xa5queue\xa1q\xa7headers\xd4\x01\x81", "bad_request", "headers", -1},                      // the library skips extensions before maps
		{"\x82\xa2op\xa3ack\xa6leases\xdc\x03\xe9" + strings.Repeat("\xa1x", 1001), "bad_request", "leases", -1},          // 1001 of them
		{"\xde\x00\x41" + strings.Repeat("\xa1y\x01", 64) + ping, "bad_request", "", -1},                                  // 65 fields
		{"\x82\xa2op\xa7enqueue\xa4jobs\x92\x81\xa5queue\xa1q\x82\xa5queue\xa1q\xa3key\xa1\xff", "bad_request", "key", 1}, // inside a list
	} {
		var r protocol.Request
		got := protocol.Msgpack.DecodeRequest([]byte(test.request), smallPayload, &r)
		checkError(t, fmt.Sprintf("%.60q", test.request), got, test)
	}
}

// TestIntegerForms checks that every msgpack form of an integer decodes to the same value.
func TestIntegerForms(t *testing.T) {
	for _, form := range []string{"\x05", "\xcc\x05", "\xcd\x00\x05", "\xce\x00\x00\x00\x05", "\xcf\x00\x00\x00\x00\x00\x00\x00\x05",
		"\xd0\x05", "\xd1\x00\x05", "\xd2\x00\x00\x00\x05", "\xd3\x00\x00\x00\x00\x00\x00\x00\x05"} {
		var r protocol.Request
		err := protocol.Msgpack.DecodeRequest([]byte("\x83\xa2op\xa5claim\xa5queue\xa1q\xa3max"+form), smallPayload, &r)
		if err != nil || r.Max != protocol.Some[int64](5) {
			t.Errorf("%x: got %v, %v, want 5", form, r.Max, err)
		}
	}
	for _, form := range []string{"\xfb", "\xd0\xfb", "\xd1\xff\xfb", "\xd2\xff\xff\xff\xfb", "\xd3\xff\xff\xff\xff\xff\xff\xff\xfb"} {
		var r protocol.Request
		err := protocol.Msgpack.DecodeRequest([]byte("\x83\xa2op\xa7enqueue\xa5queue\xa1q\xa8priority"+form), smallPayload, &r)
		if err != nil || r.Job.Priority != -5 {
			t.Errorf("%x: got %v, %v, want -5", form, r.Job.Priority, err)
		}
	}
}

// TestErrorTextIsCut checks that nack's error is cut to 4 KiB of whole characters.
func TestErrorTextIsCut(t *testing.T) {
	for n, want := range map[int]int{4095: 4095, 4096: 4096, 4097: 4096, 10000: 4096} {
		var r protocol.Request
		body := protocol.JSON.AppendRequest(nil, &protocol.Request{Op: protocol.OpNack, Lease: "l", Error: strings.Repeat("x", n)})
		if err := protocol.JSON.DecodeRequest(body, smallPayload, &r); err != nil || len(r.Error) != want {
			t.Errorf("%d bytes: got %d and %v, want %d", n, len(r.Error), err, want)
		}
	}
	var r protocol.Request
	body := protocol.JSON.AppendRequest(nil, &protocol.Request{Op: protocol.OpNack, Lease: "l", Error: "x" + strings.Repeat("€", 2000)})
	if err := protocol.JSON.DecodeRequest(body, smallPayload, &r); err != nil || r.Error != "x"+strings.Repeat("€", 1365) {
		t.Errorf("got %d bytes and %v, want the 4096 that are whole characters", len(r.Error), err)
	}
}

func TestCheckQueueName(t *testing.T) {
	good := []string{"q", "A", "0", "_", ":", "/", "a.b-c_d:e/f", strings.Repeat("x", 128)}
	bad := []string{"", ".", "-", ".q", "-q", "*", "a b", "a*", "ü", "a\x00", "a\n", "q\xff", strings.Repeat("x", 129)}
	for _, name := range slices.Concat(good, bad) {
		err := protocol.CheckQueueName("where", name)
		if want := slices.Contains(bad, name); (err != nil) != want {
			t.Errorf("%q: got %v, want an error: %v", name, err, want)
		}
		if err != nil && (err.Field != "where" || err.Code != protocol.CodeBadRequest) {
			t.Errorf("%q: got %v of field %q, want a bad_request of the field it was asked for", name, err, err.Field)
		}
	}
}
