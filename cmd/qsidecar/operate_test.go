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

// TestJobsOfOtherStates checks that a command that leaves out named jobs prints which states
// it changes, and what helps with the others.
func TestJobsOfOtherStates(t *testing.T) {
	h := newHost(t)
	h.serve()
	scheduled := strings.TrimSpace(h.must(0, "enqueue", "q", "x", "--delay", "1h"))
	h.must(0, "enqueue", "q", "x")
	claimed := h.claim("q").ID
	for _, c := range []struct {
		args []string
		out  string
		err  string
	}{
		{[]string{"retry", "q", scheduled, claimed}, "retried 0 jobs\n",
			"qsidecar: only dead jobs are retried; see `qsidecar show ID`. To make a scheduled job ready, run `qsidecar change q ID --delay 0`\n"},
		{[]string{"change", "q", claimed, scheduled, "--priority", "1"}, "changed 1 job\n", "qsidecar: only ready and scheduled jobs are changed; see `qsidecar show ID`\n"},
		{[]string{"delete", "q", claimed, "--yes"}, "deleted 0 jobs\n",
			"qsidecar: claimed jobs aren't deleted; see `qsidecar show ID`. To take one from its worker first, run `qsidecar reclaim q ID`\n"},
		{[]string{"reclaim", "q", scheduled, "--yes"}, "reclaimed 0 jobs\n", "qsidecar: only claimed jobs are reclaimed; see `qsidecar show ID`\n"},
		{[]string{"change", "q", scheduled, scheduled, "--delay", "0"}, "changed 1 job\n", ""},
		{[]string{"retry", "q", "--all"}, "retried 0 jobs\n", ""},
	} {
		if r := h.run(c.args...); r.code != 0 || r.out != c.out || r.err != c.err {
			t.Errorf("%v: exit code %d\n%s%s\nwant\n%s%s", c.args, r.code, r.out, r.err, c.out, c.err)
		}
	}
}
