package main

import (
	"strings"
	"testing"
)

// TestWait checks what wait prints, and its exit codes.
func TestWait(t *testing.T) {
	h := newHost(t)
	h.serve()
	enqueue := func() string { return strings.TrimSpace(h.must(0, "enqueue", "q", "x")) }
	claim := func() string {
		_, rest, _ := strings.Cut(h.must(0, "claim", "q"), `"lease":"`)
		lease, _, _ := strings.Cut(rest, `"`)
		return lease
	}
	one, two := enqueue(), enqueue()
	if r := h.run("wait", "q", one, two, "--wait", "0s"); r.code != 3 || r.out != "" || !strings.Contains(r.err, "2 of 2 jobs have not ended within 0s") {
		t.Errorf("%d %s%s", r.code, r.out, r.err)
	}
	waits := make(chan result, 1)
	go func() { waits <- h.run("wait", "q", one) }()
	h.must(0, "ack", claim())
	if r := <-waits; r.code != 0 && r.code != 1 || !strings.Contains(r.out, `{"id":"`+one+`","state":"d`) { // deleted if the wait began after the ack
		t.Errorf("%d %s%s", r.code, r.out, r.err)
	}
	h.must(0, "nack", claim(), "--dead", "--error", "no such address")
	if r := h.run("wait", "q", two, "999", "--any"); r.code != 1 || !strings.Contains(r.out, `{"id":"`+two+`","state":"dead","last_error":"no such address"}`) || !strings.Contains(r.err, "is de") {
		t.Errorf("%d %s%s", r.code, r.out, r.err)
	}
	h.must(2, "wait", "q")
	h.must(2, "wait", "q", "")
}
