package protocol

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
)

// seeds adds the requests (C:) or replies (S:) of the transcripts, in codec c.
func seeds(f *testing.F, prefix string, c Codec) {
	f.Helper()
	files, err := filepath.Glob("testdata/transcripts/*.txt")
	if err != nil || len(files) == 0 {
		f.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			text, ok := strings.CutPrefix(line, prefix)
			if !ok || len(text) > 4<<10 {
				continue
			}
			if c == JSON {
				f.Add([]byte(text))
				continue
			}
			var req Request
			var rep Reply
			if prefix == "C: " && JSON.DecodeRequest([]byte(text), NewLimits(DefaultMaxFrame), &req) == nil {
				f.Add(body(c, c.AppendRequest(nil, &req)))
			}
			if prefix == "S: " && JSON.DecodeReply([]byte(text), &rep) == nil {
				f.Add(body(c, c.AppendReply(nil, &rep)))
			}
		}
	}
}

// addHostile adds the hostile messages and truncates the large ones. Large inputs only slow the
// mutator down, and their heads are what matters.
func addHostile(f *testing.F, messages map[string]string) {
	for _, m := range messages {
		f.Add([]byte(m[:min(len(m), 4<<10)]))
	}
}

// Run a target with a small -fuzzminimizetime (20x). By default the fuzzer spends up to a minute on
// minimizing each new input.

// fuzzRequest checks that a request that decodes also encodes, and decodes to the same request
// again. Decoding must not panic or use disproportionate memory.
func fuzzRequest(f *testing.F, c Codec) {
	seeds(f, "C: ", c)
	l := NewLimits(64 << 10)
	f.Fuzz(func(t *testing.T, b []byte) {
		sent := bytes.Clone(b)
		var r, again Request
		err := c.DecodeRequest(b, l, &r)
		if !bytes.Equal(b, sent) {
			t.Fatal("decoding changed its input")
		}
		if err != nil {
			checkFuzzError(t, err)
			return
		}
		for _, other := range []Codec{Msgpack, JSON} {
			if err := other.DecodeRequest(body(other, other.AppendRequest(nil, &r)), l, &again); err != nil {
				t.Fatalf("%+v: in %v: %v", r, other, err)
			}
			r, again := normal(r), normal(again)
			if diff := cmp.Diff(r, again, compareIDs); diff != "" {
				t.Fatalf("in %v: -first +second:\n%s", other, diff)
			}
		}
	})
}

// normal removes differences that an encoder does not write because they mean the same as an absent
// field.
func normal(r Request) Request {
	if len(r.Job.Payload) == 0 {
		r.Job.Payload = nil
	}
	if len(r.Job.Headers) == 0 {
		r.Job.Headers = nil
	}
	for _, list := range []*[]NewJob{&r.Jobs, &r.Enqueue} {
		*list = append([]NewJob(nil), *list...)
		for i := range *list {
			if j := &(*list)[i]; len(j.Payload) == 0 {
				j.Payload = nil
			}
			if j := &(*list)[i]; len(j.Headers) == 0 {
				j.Headers = nil
			}
		}
	}
	return r
}

func checkFuzzError(t *testing.T, err *Error) {
	t.Helper()
	switch err.Code {
	case CodeBadFrame, CodeBadRequest, CodeUnknownOp, CodeUnsupported, CodeTooLarge:
	default:
		t.Fatalf("a decoder has no %s to give", err.Code)
	}
	var got Reply
	for _, c := range []Codec{Msgpack, JSON} { // the reply to the error must encode, whatever the message quotes
		if e := c.DecodeReply(body(c, c.AppendReply(nil, &Reply{Error: err})), &got); e != nil {
			t.Fatalf("the reply with the error %v does not decode: %v", err, e)
		}
	}
	if len(err.Message) > 1000 {
		t.Fatalf("a message of %d bytes", len(err.Message))
	}
}

func FuzzMsgpackRequest(f *testing.F) {
	addHostile(f, hostileMsgpack)
	fuzzRequest(f, Msgpack)
}

func FuzzJSONRequest(f *testing.F) {
	addHostile(f, hostileJSON)
	fuzzRequest(f, JSON)
}

// fuzzReply checks that decoding a reply does not panic, and that a decoded reply encodes.
func fuzzReply(f *testing.F, c Codec) {
	seeds(f, "S: ", c)
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again Reply
		if err := c.DecodeReply(b, &r); err != nil {
			return
		}
		for _, other := range []Codec{Msgpack, JSON} {
			first := other.AppendReply(nil, &r)
			if err := other.DecodeReply(body(other, first), &again); err != nil {
				t.Fatalf("%+v: in %v: %v", r, other, err)
			}
			if second := other.AppendReply(nil, &again); !bytes.Equal(first, second) {
				t.Fatalf("in %v:\n first %q\nsecond %q", other, first, second)
			}
		}
	})
}

func FuzzMsgpackReply(f *testing.F) {
	addHostile(f, hostileMsgpack)
	fuzzReply(f, Msgpack)
}

func FuzzJSONReply(f *testing.F) {
	addHostile(f, hostileJSON)
	fuzzReply(f, JSON)
}

// FuzzShape checks that the library can walk whatever passes the shape check: one whole value of
// limited depth.
func FuzzShape(f *testing.F) {
	addHostile(f, hostileMsgpack)
	seeds(f, "C: ", Msgpack)
	f.Fuzz(func(t *testing.T, b []byte) {
		if checkShape(b) != nil {
			return
		}
		r := bytes.NewReader(b)
		if err := msgpack.NewDecoder(r).Skip(); err != nil || r.Len() != 0 {
			t.Fatalf("%x: the library skips it with %v and leaves %d bytes", b, err, r.Len())
		}
	})
}

// FuzzReader checks that the messages of a stream do not depend on how it is split into reads, and
// that no message is longer than its input.
func FuzzReader(f *testing.F) {
	for _, m := range hostileMsgpack {
		f.Add([]byte(frameOf(m[:min(len(m), 4<<10)])), uint8(7))
	}
	for _, m := range hostileJSON {
		f.Add([]byte(m[:min(len(m), 4<<10)]+"\n"), uint8(3))
	}
	for _, s := range []string{"\xff\xff\xff\xff", "\x03\xff\xff\xff", "GET / HTTP/1.1\r\n\r\n", "\n\r\n{}\r\n{", frameOf("a") + "\x00"} {
		f.Add([]byte(s), uint8(1))
	}
	f.Fuzz(func(t *testing.T, stream []byte, n uint8) {
		const limit = 8 << 10
		whole, _, end := readAll(bytes.NewReader(stream), limit)
		total := 0
		for _, m := range whole {
			if total += len(m); len(m) > limit {
				t.Fatalf("a message of %d bytes", len(m))
			}
		}
		if total > len(stream) {
			t.Fatalf("%d bytes of messages out of %d", total, len(stream))
		}
		for _, in := range []io.Reader{&chunks{left: stream, sizes: []int{int(n)%16 + 1}}, iotest.DataErrReader(bytes.NewReader(stream))} {
			pieces, _, end2 := readAll(in, limit)
			if diff := cmp.Diff(whole, pieces); diff != "" || end != end2 {
				t.Fatalf("ends %q and %q; -whole +in pieces:\n%s", end, end2, diff)
			}
		}
		if end != "EOF" && end != string(CodeBadFrame) && end != string(CodeTooLarge) {
			t.Fatalf("ended with %s", end)
		}
	})
}

var _ error = (*Error)(nil)

// TestFatalErrors checks which errors end a connection. Sessions rely on it.
func TestFatalErrors(t *testing.T) {
	var e *Error
	if !errors.As(error(Errorf(CodeBusy, "wait %d s", 3)), &e) || e.Error() != "busy: wait 3 s" {
		t.Errorf("got %v", e)
	}
	for code, fatal := range map[Code]bool{CodeBadFrame: true, CodeTooLarge: true, CodeBadRequest: false, CodeInternal: false} {
		if (&Error{Code: code}).Fatal() != fatal {
			t.Errorf("%s: Fatal is not %v", code, fatal)
		}
	}
}
