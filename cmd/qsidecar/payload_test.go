package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// storedPayload returns the bytes of the payload of the next job of the queue q, and acks it.
func (h *host) storedPayload() string {
	h.t.Helper()
	var j struct {
		Lease, Payload string
		B64            *string `json:"payload_b64"`
	}
	if err := json.Unmarshal([]byte(h.must(0, "claim", "q")), &j); err != nil {
		h.t.Fatal(err)
	}
	h.must(0, "ack", j.Lease)
	if j.B64 == nil {
		return j.Payload
	}
	b, err := base64.StdEncoding.DecodeString(*j.B64)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(b)
}

// TestPayloadFormats checks what enqueue stores for a payload with each flag, and what it
// reports.
func TestPayloadFormats(t *testing.T) {
	h := newHost(t)
	h.serve()
	for _, row := range []struct {
		payload, flags string
		stored, report string
	}{
		{"hello, world", "", `"hello, world"`, "JSON string, 14 bytes"},
		{"it's <b> & \"c\"\n", "", `"it's <b> & \"c\"\n"`, "JSON string, 20 bytes"},
		{`{"to":"ada"}`, "", `{"to":"ada"}`, "JSON object, 12 bytes"},
		{"[1, 2]\n", "", "[1, 2]\n", "JSON array, 7 bytes"},
		{`"quoted"`, "", `"quoted"`, "JSON string, 8 bytes"},
		{"17", "", "17", "JSON number, 2 bytes"},
		{"-1.5e3", "", "-1.5e3", "JSON number, 6 bytes"},
		{"017", "", `"017"`, "JSON string, 5 bytes"},
		{"null", "", "null", "JSON null, 4 bytes"},
		{"true", "", "true", "JSON boolean, 4 bytes"},
		{"", "", `""`, "JSON string, 2 bytes"},
		{"17", "--text", `"17"`, "JSON string, 4 bytes"},
		{"17", "--json", "17", "number 2"},
		{"\x00\xff", "--raw", "\x00\xff", "raw payload, 2 bytes"},
		{`"quoted"`, "--raw", `"quoted"`, "raw payload, 8 bytes"},
		{"hello", "--text --json", `"hello"`, "string 7"},
		{"hello", "--raw --json", "hello", "bytes 5"},
		{"", "--raw", "", "raw payload, 0 bytes"},
	} {
		args := append([]string{"enqueue", "q", "-"}, strings.Fields(row.flags)...)
		h.terminal = true
		r := h.runWith(row.payload, args...)
		h.terminal = false
		if strings.Contains(row.flags, "--json") {
			var answer struct {
				Job    struct{ ID string }
				Stored storedPayload
			}
			if err := json.Unmarshal([]byte(r.out), &answer); err != nil || answer.Job.ID == "" || r.err != "" {
				t.Errorf("enqueue %q %s: %+v", row.payload, row.flags, r)
			}
			if got := fmt.Sprintf("%s %d", answer.Stored.Type, answer.Stored.Bytes); got != row.report {
				t.Errorf("enqueue %q %s reports %s, want %s", row.payload, row.flags, got, row.report)
			}
		} else if r.code != 0 || r.err != "qsidecar: stored in q: "+row.report+"\n" {
			t.Errorf("enqueue %q %s: %+v, want the report %s", row.payload, row.flags, r, row.report)
		}
		if got := h.storedPayload(); got != row.stored {
			t.Errorf("enqueue %q %s stores %q, want %q", row.payload, row.flags, got, row.stored)
		}
	}
	if r := h.run("enqueue", "q", "17"); r.err != "" {
		t.Errorf("without a terminal: %q on stderr", r.err)
	}
	h.storedPayload()
	h.terminal = true
	if r := h.run("enqueue", "q"); r.err != "qsidecar: stored in q: no payload\n" || h.storedPayload() != "" {
		t.Errorf("without a payload: %+v", r)
	}
	h.runWith("\xff", "enqueue", "q", "-").wantStderr(t, exitUsage, "not UTF-8", "--raw")
	h.run("enqueue", "q", "hello", "--json").wantStderr(t, exitUsage, "the payload is not JSON", "--text", "--raw")
	h.run("enqueue", "q", "hello", "--raw", "--text").wantStderr(t, exitUsage, "--raw and --text exclude each other")
}

// TestPayloadTexts checks that `claim --env` and `work` give the text of a JSON string, and
// the stored bytes with --raw and of any other payload.
func TestPayloadTexts(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.run("claim", "q", "--raw").wantStderr(t, exitUsage, "--raw goes with --env")
	h.run("work", "q", "--persistent", "--raw", "--", "cat").wantStderr(t, exitUsage, "leave --raw out")
	for stored, text := range map[string]string{
		`"hello, \"world\" \u2603\n"`: "hello, \"world\" \u2603\n",
		` "spaces around" `:           "spaces around",
		`""`:                          "",
		`{"to": "ada"}`:               `{"to": "ada"}`,
		"17":                          "17",
		`"not JSON`:                   `"not JSON`,
		`"half of a pair: \ud83d"`:    `"half of a pair: \ud83d"`,
		"no \xff JSON":                "no \xff JSON",
	} {
		for _, flag := range []string{"", "--raw"} {
			want := text
			if flag != "" {
				want = stored
			}
			enqueue := func() { h.mustWith(0, stored, "enqueue", "q", "-", "--raw") }
			enqueue()
			env := h.must(0, append([]string{"claim", "q", "--env"}, strings.Fields(flag)...)...)
			got, err := exec.Command("sh", "-c", env+`printf %s "$QSIDECAR_PAYLOAD"`).Output()
			if err != nil || string(got) != want {
				t.Errorf("claim --env %s of %q: %q (%v), want %q", flag, stored, got, err, want)
			}
			enqueue()
			var out bytes.Buffer
			args := append([]string{"work", "q", "--once"}, strings.Fields(flag)...)
			if code := h.app(strings.NewReader(""), &out, new(bytes.Buffer), nil).main(append(args, "--", "cat")); code != 0 || out.String() != want {
				t.Errorf("work %s of %q: exit code %d, %q, want %q", flag, stored, code, &out, want)
			}
		}
	}
}

// TestTextThatLooksLikeJSON shows that a payload that was meant as JSON isn't stored as a text without a warning.
func TestTextThatLooksLikeJSON(t *testing.T) {
	h := newHost(t)
	h.serve()
	for payload, want := range map[string]string{"{to: ada}": "invalid character 't'", " [1, 2": "unexpected end of JSON input"} {
		if r := h.run("enqueue", "q", payload); r.code != 0 || !strings.Contains(r.err, "a payload looks like JSON and isn't ("+want) || !strings.Contains(r.err, "--raw") {
			t.Errorf("%s: exit code %d, and on stderr %q", payload, r.code, r.err)
		}
		if r := h.run("enqueue", "q", payload, "--text"); r.code != 0 || strings.Contains(r.err, "looks like JSON") {
			t.Errorf("%s as a text: exit code %d, and on stderr %q", payload, r.code, r.err)
		}
	}
	r := h.runWith("[1]\n{x\n{y\n", "enqueue", "q", "--lines")
	if r.code != 0 || strings.Count(r.err, "looks like JSON") != 1 {
		t.Errorf("lines: exit code %d, and on stderr %q", r.code, r.err)
	}
}

// TestTextThatLooksLikeAFile shows that the @FILE of other programs isn't stored as a text without a warning.
func TestTextThatLooksLikeAFile(t *testing.T) {
	h := newHost(t)
	h.serve()
	for payload, warns := range map[string]bool{"@job.json": true, "@/tmp/job": true, "@ada": false, "@ada, see a.b": false, "ada@example.com": false} {
		const want = "a payload begins with @ and was stored as it is: to send the contents of a file, write < FILE; --text stores a text without this warning"
		if r := h.run("enqueue", "q", payload); r.code != 0 || strings.Contains(r.err, want) != warns {
			t.Errorf("%s: exit code %d, and on stderr %q", payload, r.code, r.err)
		}
		if r := h.run("enqueue", "q", payload, "--text"); r.code != 0 || r.err != "" {
			t.Errorf("%s as a text: exit code %d, and on stderr %q", payload, r.code, r.err)
		}
	}
}

// TestRunAt shows that a job is scheduled for an instant, without a zone in that of this host.
func TestRunAt(t *testing.T) {
	h := newHost(t)
	h.serve()
	for _, at := range []string{"2099-01-31T18:30:00+02:00", "2099-01-31 18:30", "2099-01-31T18:30:15"} {
		h.must(0, "enqueue", "q", "x", "--run-at", at)
	}
	var want []int64
	for _, at := range []time.Time{time.Date(2099, 1, 31, 16, 30, 0, 0, time.UTC), time.Date(2099, 1, 31, 18, 30, 0, 0, time.Local), time.Date(2099, 1, 31, 18, 30, 15, 0, time.Local)} {
		want = append(want, at.UnixMilli())
	}
	var got []int64
	for line := range strings.Lines(h.must(0, "peek", "q", "--state", "scheduled", "--json")) {
		var v struct {
			RunAt int64 `json:"run_at"`
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		got = append(got, v.RunAt)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("scheduled for %v, want %v", got, want)
	}
}
