package main

import (
	"strings"
	"testing"
	"time"
)

// TestLongCommandsHaveNoTimeLimit checks that a command which changes any number of jobs isn't
// limited to a minute.
func TestLongCommandsHaveNoTimeLimit(t *testing.T) {
	h := newHost(t)
	h.serve()
	h.must(0, "enqueue", "q", "x")
	h.callTimeout = time.Nanosecond
	h.must(0, "retry", "q", "--all")
	h.must(0, "purge", "q", "--state", "ready", "--yes")
	if r := h.run("retry", "q", "1"); r.code != 5 || !strings.Contains(r.err, "did not answer within 1ns") {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
}
