package transcript_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/qsidecar/qsidecar/protocol"
	"github.com/qsidecar/qsidecar/protocol/transcript"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustParse(t *testing.T, text string) *transcript.Transcript {
	t.Helper()
	tr, err := transcript.Parse("test", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestParse(t *testing.T) {
	tr := mustParse(t, `
# a comment
! need one two
! codec msgpack
C: {"a":1}
S2: {"b":"$_"}
C3 raw: 2 * 00 ff
C raw: "a\n"
C shutdown
C2 close
S close
`)
	if diff := cmp.Diff([]string{"one", "two"}, tr.Needs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]protocol.Codec{protocol.Msgpack}, tr.Codecs()); diff != "" {
		t.Error(diff)
	}
	want := []transcript.Step{
		{Line: 5, Conn: 1, Kind: transcript.Send, Text: `{"a":1}`, Message: map[string]any{"a": json.Number("1")}},
		{Line: 6, Conn: 2, Kind: transcript.Receive, Text: `{"b":"$_"}`, Message: map[string]any{"b": "$_"}},
		{Line: 7, Conn: 3, Kind: transcript.SendRaw, Raw: []byte{0, 255, 0, 255}},
		{Line: 8, Conn: 1, Kind: transcript.SendRaw, Raw: []byte("a\n")},
		{Line: 9, Conn: 1, Kind: transcript.Shutdown},
		{Line: 10, Conn: 2, Kind: transcript.HangUp},
		{Line: 11, Conn: 1, Kind: transcript.ServerClose},
	}
	if diff := cmp.Diff(want, tr.Steps); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestParseErrors(t *testing.T) {
	for _, text := range []string{"", "# nothing", "hello", "C {}", "C: {", "C: []", "C: {} {}", "S shutdown", "S raw: 00", "C0: {}",
		"C raw: 0", "C raw: xx", `C raw: "`, "C raw: 999999999999 * 00", "! codec xml\nC: {}", "! need\nC: {}", "! what\nC: {}", "D: {}"} {
		if _, err := transcript.Parse("test", strings.NewReader(text)); err == nil {
			t.Errorf("%q was parsed, want an error", text)
		} else if !strings.Contains(err.Error(), "test.txt") {
			t.Errorf("%q: %v does not say where", text, err)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := transcript.Load(dir); err == nil {
		t.Error("a directory without transcripts was loaded")
	}
	for name, text := range map[string]string{"b.txt": "C close", "a.txt": "S close", "README.md": "no transcript"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := transcript.Load(dir)
	if err != nil || len(all) != 2 || all[0].Name != "a" || all[1].Name != "b" {
		t.Errorf("got %v and %v, want a and b", all, err)
	}
}

// TestConversionRoundTrip checks that a conversion to msgpack and back returns the same JSON.
func TestConversionRoundTrip(t *testing.T) {
	const text = `{"a":1,"b":-70000,"c":9007199254740991,"d":18446744073709551615,"e":1.5,"f":[true,false,null,{"x":"é"}],` +
		`"payload":"text","result_b64":"AP8=","headers":{"payload":"p","x_b64":"y"},"jobs":[{"payload_b64":"/w=="}]}`
	var want map[string]any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&want); err != nil {
		t.Fatal(err)
	}
	b, err := transcript.ToMsgpack(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := transcript.FromMsgpack(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-sent +received:\n%s", diff)
	}
	for _, raw := range []string{"\xc4\x02\x00\xff", "\xc4\x01\xff"} {
		if n := strings.Count(string(b), raw); n != 1 {
			t.Errorf("the bytes %x stand %d times in %x as bin, want once", raw, n, b)
		}
	}
	for _, bad := range []string{"", "\x90", "\x80\x80", "\x82\xa1a\x01\xa1a\x01", "\x81\xa1a", "\x81\x01\x01"} {
		if m, err := transcript.FromMsgpack([]byte(bad)); err == nil {
			t.Errorf("%x was read as %v", bad, m)
		}
	}
}

// script is a server. It answers each request with the list of messages in its field "reply", and
// then does what its field "do" names.
func script(c net.Conn) error {
	in := protocol.NewReader(c, 1<<20)
	for {
		body, codec, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var m map[string]any
		if codec == protocol.JSON {
			err = json.Unmarshal(body, &m)
		} else {
			m, err = transcript.FromMsgpack(body)
		}
		if err != nil {
			return err
		}
		if err := answer(c, codec, m["reply"].([]any)); err != nil || m["do"] == "close" {
			return err
		}
	}
}

func answer(c net.Conn, codec protocol.Codec, messages []any) error {
	for _, m := range messages {
		b, err := json.Marshal(m)
		if err == nil && codec == protocol.Msgpack {
			var back map[string]any
			d := json.NewDecoder(strings.NewReader(string(b)))
			d.UseNumber()
			if err := d.Decode(&back); err != nil {
				return err
			}
			b, err = transcript.ToMsgpack(back)
			b = append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
		} else {
			b = append(b, '\n')
		}
		if err != nil {
			return err
		}
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// recorder is a testing.TB whose failure is recorded.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) { r.failure += fmt.Sprintf(format, args...) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// play runs a transcript against script and returns its failure.
func play(t *testing.T, text string, codec protocol.Codec) string {
	t.Helper()
	tr := mustParse(t, text)
	rec := &recorder{TB: t}
	var servers []chan error
	done := make(chan struct{})
	go func() {
		defer close(done)
		transcript.Run(rec, tr, codec, func(testing.TB) net.Conn {
			client, server := socketPair(t)
			ended := make(chan error, 1)
			servers = append(servers, ended)
			go func() { ended <- errors.Join(script(server), server.Close()) }()
			return client
		})
	}()
	<-done
	for _, ended := range servers {
		if err := <-ended; err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the scripted server: %v", err)
		}
	}
	return rec.failure
}

func socketPair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conns := make([]net.Conn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		if conns[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return conns[0], conns[1]
}

// TestRun checks that a matching conversation passes, and that each kind of difference fails and
// reports its line.
func TestRun(t *testing.T) {
	for _, test := range []struct {
		name string
		text string
		want string // expected in the failure; empty: no failure
	}{
		{"as written", `C: {"reply":[{"id":1,"x":"a","l":[1,{"y":null}],"b":true}]}` + "\n" + `S: {"id":1,"x":"a","l":[1,{"y":null}],"b":true}`, ""},
		{"another value", `C: {"reply":[{"x":"a"}]}` + "\n" + `S: {"x":"b"}`, `test.txt:2: .x: got "a", want "b"`},
		{"another type", `C: {"reply":[{"x":"1"}]}` + "\n" + `S: {"x":1}`, `.x: got "1", want 1`},
		{"a missing field", `C: {"reply":[{"x":1}]}` + "\n" + `S: {"x":1,"y":"$_"}`, ".y is missing"},
		{"an optional field", `C: {"reply":[{"x":1}]}` + "\n" + `S: {"x":1,"y":"$?"}`, ""},
		{"a field too many", `C: {"reply":[{"x":1,"z":1}]}` + "\n" + `S: {"x":1}`, ".z is not expected"},
		{"others allowed", `C: {"reply":[{"x":1,"z":1}]}` + "\n" + `S: {"x":1,"...":"$_"}`, ""},
		{"a list too long", `C: {"reply":[{"x":[1,2]}]}` + "\n" + `S: {"x":[1]}`, "want a list of 1"},
		{"a map instead", `C: {"reply":[{"x":{}}]}` + "\n" + `S: {"x":[]}`, "want a list of 0"},
		{"a list instead", `C: {"reply":[{"x":[]}]}` + "\n" + `S: {"x":{}}`, "want a map"},
		{"captured", `C: {"reply":[{"x":"v"}]}` + "\n" + `S: {"x":"$v"}` + "\n" + `C: {"reply":[{"x":"$v"}]}` + "\n" + `S: {"x":"v"}`, ""},
		{"captured and another", `C: {"reply":[{"x":"v"},{"x":"w"}]}` + "\n" + `S: {"x":"$v"}` + "\n" + `S: {"x":"$v"}`, `got "w", want $v = "v"`},
		{"not captured", `C: {"reply":[{"x":"$v"}]}`, "$v was not captured yet"},
		{"a queue from the beginning", `C: {"reply":[{"x":"$q"}]}` + "\n" + `S: {"x":"$q"}`, ""},
		{"greater", `C: {"reply":[{"x":1},{"x":2}]}` + "\n" + `S: {"x":"$v"}` + "\n" + `S: {"x":"$>v"}`, ""},
		{"not greater", `C: {"reply":[{"x":1},{"x":1}]}` + "\n" + `S: {"x":"$v"}` + "\n" + `S: {"x":"$>v"}`, "want more than $v = 1"},
		{"no number", `C: {"reply":[{"x":"a"},{"x":1}]}` + "\n" + `S: {"x":"$v"}` + "\n" + `S: {"x":"$>v"}`, "want a number greater"},
		{"a dollar", `C: {"reply":[{"x":"$$v"}]}` + "\n" + `S: {"x":"$$v"}`, ""},
		{"by id", `C: {"reply":[{"id":2},{"e":1},{"id":1}]}` + "\n" + `S: {"id":1}` + "\n" + `S: {"id":2}` + "\n" + `S: {"e":1}`, ""},
		{"never comes", `C: {"reply":[{"id":2}],"do":"close"}` + "\n" + `S: {"id":1}`, "test.txt:2: no such message came: EOF; unmatched so far: [{\"id\":2}]"},
		{"closed", `C: {"reply":[],"do":"close"}` + "\n" + `S close`, ""},
		{"more before the close", `C: {"reply":[{"id":2}],"do":"close"}` + "\n" + `S close`, "should have closed"},
		{"kept before the close", `C: {"reply":[{"id":2},{"id":1}],"do":"close"}` + "\n" + `S: {"id":1}` + "\n" + `S close`, "should have closed"},
		{"half-close", `C: {"reply":[]}` + "\n" + "C shutdown\nS close", ""},
		{"used after the hang-up", "C close\nS close", "a connection that it closed"},
		{"two connections", `C: {"reply":[{"x":1}]}` + "\n" + `C2: {"reply":[{"x":2}]}` + "\n" + `S2: {"x":2}` + "\n" + `S: {"x":1}` + "\nC2 close", ""},
		{"bytes", `C: {"reply":[{"payload":"p"}]}` + "\n" + `S: {"payload":"p"}`, ""},
	} {
		for _, codec := range []protocol.Codec{protocol.Msgpack, protocol.JSON} {
			got := play(t, test.text, codec)
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("%s in %v: got the failure %q, want %q", test.name, codec, got, test.want)
			}
		}
	}
}

// TestRunRaw checks that raw bytes are sent unchanged, and that the codec of the reply is checked.
func TestRunRaw(t *testing.T) {
	if got := play(t, "! codec json\nC raw: \"{\\\"reply\\\":\"\nC raw: \"[{\\\"x\\\":1}]}\\n\"\nS: {\"x\":1}", protocol.JSON); got != "" {
		t.Error(got)
	}
	if got := play(t, "! codec json\nC: {}", protocol.Msgpack); !strings.Contains(got, "cannot be replayed in msgpack") {
		t.Errorf("got %q, want a refusal of the codec", got)
	}
	frame := `C raw: 00 00 00 08 81 a5 72 65 70 6c 79 90` + "\n" // {"reply":[]} in the other codec, which gets no reply
	if got := play(t, frame+"C shutdown\nS close", protocol.JSON); got != "" {
		t.Error(got)
	}
	other := `C raw: 00 00 00 0c 81 a5 72 65 70 6c 79 91 81 a1 78 01` + "\n"
	if got := play(t, other+`S: {"x":1}`, protocol.JSON); !strings.Contains(got, "answers in msgpack, not json") {
		t.Errorf("got %q, want a complaint of the codec", got)
	}
}

// TestRunsUseTheirOwnQueues checks that each run uses its own queues.
func TestRunsUseTheirOwnQueues(t *testing.T) {
	var names []string
	for range 2 {
		got := play(t, `C: {"reply":[{"x":"$q"},{"x":"$q2"},{"x":"$q3"}]}`+"\n"+`S: {"x":"$q"}`+"\n"+`S: {"x":"$q2"}`+"\n"+`S: {"x":"none"}`, protocol.JSON)
		name := strings.Split(got, `"`)[1]
		if err := protocol.CheckQueueName("q3", name); err != nil || slices.Contains(names, name) {
			t.Errorf("the queue %q: %v; before: %q", name, err, names)
		}
		names = append(names, name)
	}
}
