package protocol_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/protocol"
	"github.com/qsidecar/qsidecar/protocol/transcript"
)

func document(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// constants returns the values of the constants of a type in a file of this package.
func constants(t *testing.T, file, typeName string) (values []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != typeName {
			return true
		}
		for _, v := range spec.Values {
			s, err := strconv.Unquote(v.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, s)
		}
		return true
	})
	if len(values) == 0 {
		t.Fatalf("%s has no constants of type %s", file, typeName)
	}
	return values
}

// TestDocumentMentionsEverything checks that PROTOCOL.md mentions every op, error code, state, event
// and field.
func TestDocumentMentionsEverything(t *testing.T) {
	doc := document(t)
	for _, op := range protocol.OpNames() {
		if !regexp.MustCompile("(?m)^### .*`" + string(op) + "`").MatchString(doc) {
			t.Errorf("the op %s has no heading", op)
		}
	}
	for _, code := range constants(t, "error.go", "Code") {
		if !strings.Contains(doc, "\n| `"+code+"` | ") {
			t.Errorf("the error code %s has no row in the table", code)
		}
	}
	names := append(constants(t, "message.go", "State"), protocol.EventLost, protocol.EventDraining, "group", "unique", "max_bytes", "payload_b64", "result_b64")
	for _, name := range append(names, protocol.FieldNames()...) {
		if !strings.Contains(doc, "`"+name+"`") {
			t.Errorf("`%s` is not there", name)
		}
	}
	if known, listed := len(constants(t, "message.go", "Op")), len(protocol.OpNames()); known != listed {
		t.Errorf("message.go has %d ops and the table %d", known, listed)
	}
}

// TestDocumentLimits checks that the limits in PROTOCOL.md are those of the code.
func TestDocumentLimits(t *testing.T) {
	doc := document(t)
	for what, n := range map[string]int64{
		"`max`=1 | 1…%s jobs": protocol.MaxList, "`wait_ms`=0 | 0…%s:": protocol.MaxWaitMS,
		"`lease_ms`? | 1,000…%s:": protocol.MaxLeaseMS, "`delay_ms`? | 0…%s (": protocol.MaxDelayMS,
		"`timeout_ms`? | 1…%s,": protocol.MaxTimeoutMS, "0…%s (the end of the year 9999)": protocol.MaxRunAt,
		"`max_attempts`? | 1…%s;": protocol.MaxMaxAttempt, "…%s, higher first": protocol.MaxPriority,
		"`key`? | text of 1–%s bytes": protocol.MaxKey, "at most %s entries": protocol.MaxHeaders,
		"entries and %s bytes": protocol.MaxHeaderSize, "a text of at most %s bytes, and comes back": protocol.MaxRequestID,
		"a name of at most %s bytes, for people": protocol.MaxWorkerName, "text for people; cut at %s bytes": protocol.MaxErrorText,
		"A lease is 1–%s bytes": protocol.MaxLease, "Queue names** are 1–%s bytes": protocol.MaxQueueName,
		"map name → 1…%s, with": protocol.MaxWeight, "opaque text of 1–%s bytes": protocol.MaxJobID,
	} {
		if want := fmt.Sprintf(what, thousands(n)); !strings.Contains(doc, want) {
			t.Errorf("the document does not say: %s", want)
		}
	}
	l := protocol.NewLimits(protocol.DefaultMaxFrame)
	if l.MaxFrame-l.MaxPayload != 16<<10 || l.MaxReply != 8*l.MaxFrame || l.MaxFrame != 4<<20 || protocol.MaxMaxFrame != 64<<20 || l.ClaimBytes != 4<<20 || protocol.NewLimits(64<<10).ClaimBytes != 64<<10 {
		t.Errorf("section 12 lists limits other than %+v", l)
	}
}

func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// block returns the fenced block of a kind.
func block(t *testing.T, doc, kind string) string {
	t.Helper()
	m := regexp.MustCompile("(?s)```" + kind + "\n(.*?)```").FindStringSubmatch(doc)
	if m == nil {
		t.Fatalf("there is no block %q", kind)
	}
	return m[1]
}

// TestDocumentExamples checks that the two forms of each example are the same message, and that the
// codecs write exactly these bytes.
func TestDocumentExamples(t *testing.T) {
	for example := range strings.SplitSeq(strings.TrimSpace(block(t, document(t), "example")), "\n\n") {
		text, hexa, _ := strings.Cut(example, "\n")
		frame, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "").Replace(hexa))
		if err != nil || len(frame) < 4 {
			t.Fatalf("%s: %v", text, err)
		}
		if n := binary.BigEndian.Uint32(frame); int(n) != len(frame)-4 {
			t.Errorf("%s: the length is %d, but %d bytes follow", text, n, len(frame)-4)
		}
		m, err := transcript.FromMsgpack(frame[4:])
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if diff := cmp.Diff(parse(t, text), m); diff != "" {
			t.Errorf("%s: -JSON +msgpack:\n%s", text, diff)
		}
		var inJSON, inMsgpack string
		if m["op"] != nil {
			var r protocol.Request
			if err := protocol.Msgpack.DecodeRequest(frame[4:], protocol.NewLimits(1<<20), &r); err != nil {
				t.Errorf("%s: %v", text, err)
			}
			inJSON, inMsgpack = string(protocol.JSON.AppendRequest(nil, &r)), string(protocol.Msgpack.AppendRequest(nil, &r))
		} else {
			var r protocol.Reply
			if err := protocol.Msgpack.DecodeReply(frame[4:], &r); err != nil {
				t.Errorf("%s: %v", text, err)
			}
			inJSON, inMsgpack = string(protocol.JSON.AppendReply(nil, &r)), string(protocol.Msgpack.AppendReply(nil, &r))
		}
		if inJSON != text+"\n" || inMsgpack != string(frame) {
			t.Errorf("the codecs write\n%s% x\nnot\n%s\n% x", inJSON, inMsgpack, text, frame)
		}
	}
}

// TestDocumentConversation checks the conversation in PROTOCOL.md. Each request decodes, except the
// one that is rejected. The server's codec writes exactly these replies.
func TestDocumentConversation(t *testing.T) {
	refused := 0
	for line := range strings.Lines(block(t, document(t), "conversation")) {
		who, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasSuffix(who, ">") {
			var r protocol.Request
			if err := protocol.JSON.DecodeRequest([]byte(text), protocol.NewLimits(1<<20), &r); err != nil {
				if refused++; err.Message != "max must be an integer from 1 to 1000" {
					t.Errorf("%s: %v", text, err)
				}
			}
			continue
		}
		var r protocol.Reply
		if err := protocol.JSON.DecodeReply([]byte(text), &r); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if got := string(protocol.JSON.AppendReply(nil, &r)); got != text+"\n" {
			t.Errorf("the codec writes\n%snot\n%s", got, text)
		}
	}
	if refused != 1 {
		t.Errorf("%d requests are refused, want 1", refused)
	}
}

func transcripts(t *testing.T) []*transcript.Transcript {
	t.Helper()
	all, err := transcript.Load("testdata/transcripts")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestTranscriptsCoverEverything checks that the transcripts have at least one of every op and
// every error code, and that the README explains every need.
func TestTranscriptsCoverEverything(t *testing.T) {
	readme, err := os.ReadFile("testdata/transcripts/README.md")
	if err != nil {
		t.Fatal(err)
	}
	ops, codes, oks := map[any]int{}, map[any]int{}, map[any]int{}
	for _, tr := range transcripts(t) {
		for _, need := range tr.Needs {
			if !strings.Contains(string(readme), "| `"+need+"` |") {
				t.Errorf("%s needs %s, which the README does not explain", tr.Name, need)
			}
		}
		opOf := map[string]any{}
		for _, s := range tr.Steps {
			key := fmt.Sprint(s.Conn, s.Message["id"])
			switch s.Kind {
			case transcript.Send:
				ops[s.Message["op"]]++
				opOf[key] = s.Message["op"]
			case transcript.Receive:
				if e, ok := s.Message["error"].(map[string]any); ok {
					codes[e["code"]]++
				} else {
					oks[opOf[key]]++
				}
			}
		}
	}
	for _, op := range protocol.OpNames() {
		if ops[string(op)] == 0 || oks[string(op)] == 0 {
			t.Errorf("%s is asked %d times and answered %d times", op, ops[string(op)], oks[string(op)])
		}
	}
	for _, code := range constants(t, "error.go", "Code") {
		if codes[code] == 0 {
			t.Errorf("no transcript has the error %s", code)
		}
	}
}

// decoderCodes are the error codes that the decoder returns without a server.
var decoderCodes = map[any]bool{"bad_request": true, "unknown_op": true, "unsupported": true, "too_large": true}

// TestTranscriptsAgreeWithTheDecoder checks in both codecs that the decoder rejects exactly the
// requests that a transcript expects to be rejected, with the same code, field and index.
func TestTranscriptsAgreeWithTheDecoder(t *testing.T) {
	for _, tr := range transcripts(t) {
		limits := protocol.NewLimits(protocol.DefaultMaxFrame)
		if reflect.DeepEqual(tr.Needs, []string{"small-frames"}) {
			limits = protocol.NewLimits(64 << 10)
		}
		want := map[string]map[string]any{}
		for _, s := range tr.Steps {
			if e, ok := s.Message["error"].(map[string]any); ok && s.Kind == transcript.Receive {
				want[fmt.Sprint(s.Conn, s.Message["id"])] = e
			}
		}
		for _, s := range tr.Steps {
			if s.Kind != transcript.Send || s.Message["id"] == nil {
				continue
			}
			e := want[fmt.Sprint(s.Conn, s.Message["id"])]
			packed, err := transcript.ToMsgpack(named(s.Message).(map[string]any))
			if err != nil {
				t.Fatal(err)
			}
			for codec, body := range map[protocol.Codec][]byte{
				protocol.Msgpack: packed, protocol.JSON: []byte(strings.ReplaceAll(s.Text, `"$`, `"`)),
			} {
				var r protocol.Request
				err := codec.DecodeRequest(body, limits, &r)
				where := fmt.Sprintf("%s.txt:%d in %v", tr.Name, s.Line, codec)
				e := e
				if err != nil && !r.ID.IsSet() { // the id itself is invalid, so the reply has none
					e = want[fmt.Sprint(s.Conn, nil)]
				}
				switch {
				case err == nil && decoderCodes[e["code"]], err != nil && !decoderCodes[e["code"]]:
					t.Errorf("%s: got %v, want %v as in the transcript", where, err, e)
				case err == nil:
				case string(err.Code) != e["code"] || e["field"] != nil && e["field"] != err.Field:
					t.Errorf("%s: got %v of %q, want %v as in the transcript", where, err, err.Field, e)
				case fmt.Sprint(e["index"]) != indexOf(err):
					t.Errorf("%s: got the index %s, want %v as in the transcript", where, indexOf(err), e)
				}
			}
		}
	}
}

func indexOf(err *protocol.Error) string {
	if i, ok := err.Index.Get(); ok {
		return fmt.Sprint(i)
	}
	return "<nil>"
}

// named removes the $ from variables, so that they are plain texts.
func named(v any) any {
	switch v := v.(type) {
	case string:
		return strings.TrimPrefix(v, "$")
	case map[string]any:
		m := map[string]any{}
		for k, el := range v {
			m[k] = named(el)
		}
		return m
	case []any:
		list := make([]any, len(v))
		for i, el := range v {
			list[i] = named(el)
		}
		return list
	}
	return v
}
