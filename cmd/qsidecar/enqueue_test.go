package main

import (
	"io"
	"regexp"
	"strings"
	"testing"
)

func TestEnqueueLines(t *testing.T) {
	h := newHost(t)
	h.serve()
	var in strings.Builder
	for range 2500 {
		in.WriteString("x\n")
	}
	in.WriteString("\nno newline at the end")
	if out := h.mustWith(0, in.String(), "enqueue", "q", "--lines"); out != "enqueued 2502 jobs\n" {
		t.Errorf("prints %q", out)
	}
	if out := h.mustWith(0, "", "enqueue", "q", "--lines"); out != "enqueued 0 jobs\n" {
		t.Errorf("of nothing: prints %q", out)
	}
	out := h.mustWith(0, "\"a\"\n17\n", "enqueue", "r", "-", "--lines", "--json")
	if strings.Count(out, "\n") != 2 || !strings.Contains(out, `"id":`) || !strings.Contains(out, `"stored":{"type":"number","bytes":2}`) {
		t.Errorf("--json prints %q", out)
	}
	if j := h.claim("r"); j.Payload != `"a"` {
		t.Errorf("the first line is %q, want a JSON string", j.Payload)
	}
	wrong := h.runWith("{}\n{\n", "enqueue", "wrong", "--lines", "--json")
	if e := wrong.jsonError(t); wrong.code != exitUsage || !strings.HasPrefix(e.Error.Message, "line 1 is enqueued; line 2: the payload is not JSON") {
		t.Errorf("a line that is not JSON: %+v", wrong)
	}
	long := strings.Repeat("x", 5<<20)
	r := h.runWith("a\n"+long, "enqueue", "s", "--lines")
	if r.code != exitFailure || !strings.Contains(r.err, "line 1 is enqueued; line 2 has more than") {
		t.Errorf("a line that is too long: %+v", r)
	}
	for in, want := range map[string]string{long: "nothing is enqueued; line 1 has more than", "a\nb\n" + long: "lines 1 to 2 are enqueued; line 3 has more than"} {
		if r := h.runWith(in, "enqueue", "too-long", "--lines"); r.code != exitFailure || !strings.Contains(r.err, want) {
			t.Errorf("%+v, want %s", r, want)
		}
	}
	// The first batch has the lines that were read by then.
	for in, want := range map[string]string{"a": "nothing is enqueued; line 1 failed: ", "a\nb": "nothing is enqueued; lines? 1( to 2)? failed: "} {
		if r := h.runWith(in, "enqueue", "no queue!", "--lines"); r.code == 0 || !regexp.MustCompile(want).MatchString(r.err) {
			t.Errorf("%+v, want %s", r, want)
		}
	}
	if h.must(0, "stats", "s", "--json"); !strings.Contains(h.must(0, "stats", "s", "--json"), `"ready":1`) {
		t.Error("the line before it was not stored")
	}
	// Large lines need several frames, in order.
	big := strings.Repeat("y", 1<<20)
	h.mustWith(0, strings.Repeat(big+"\n", 7), "enqueue", "big", "--lines")
	if out := h.must(0, "stats", "big", "--json"); !strings.Contains(out, `"ready":7`) {
		t.Errorf("of 7 large lines: %s", out)
	}
}

// TestEnqueueLinesDoesNotWait checks that a line is stored at once, not when a batch is
// full.
func TestEnqueueLinesDoesNotWait(t *testing.T) {
	h := newHost(t)
	h.serve()
	in, feed := io.Pipe()
	r := h.start(in, "enqueue", "q", "--lines")
	if _, err := io.WriteString(feed, "one\n"); err != nil {
		t.Fatal(err)
	}
	if j := h.claim("q", "--wait", "1m"); j.Payload != `"one"` {
		t.Errorf("claimed %+v", j)
	}
	feed.Close()
	if code := r.wait(); code != 0 {
		t.Errorf("ended with %d: %s", code, r.errOut)
	}
}
