package main

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// TestProgressOfAJob checks that progress reports how far the job of a lease is, that show shows it, and that the next claim has it.
func TestProgressOfAJob(t *testing.T) {
	h := newHost(t)
	h.serve()
	id := strings.TrimSpace(h.must(0, "enqueue", "q", "x"))
	claim := func() (lease string) {
		var j struct{ Lease string }
		if err := json.Unmarshal([]byte(h.must(0, "claim", "q", "--wait", "1m")), &j); err != nil {
			t.Fatal(err)
		}
		return j.Lease
	}
	lease := claim()
	h.must(0, "progress", "1", "--lease", lease)
	h.env["QSIDECAR_LEASE"] = lease
	h.must(0, "progress", "6", "10", "--data", "it's page 6")
	for want, args := range map[string][]string{
		`"x" is not an integer`: {"x"}, "name how much is done": {}, `"-1" is not`: {"--", "-1"}, "which job?": {"1", "--lease", ""},
	} {
		if r := h.run(append([]string{"progress"}, args...)...); r.code != 2 || !strings.Contains(r.err, want) {
			t.Errorf("progress %q: %d %s", args, r.code, r.err)
		}
	}
	h.must(0, "nack", lease, "--delay", "0s")
	if r := h.run("progress", "7"); r.code != 4 {
		t.Errorf("with the lease of a nacked job: %d %s", r.code, r.err)
	}
	if text := h.must(0, "show", "q", id); !strings.Contains(text, "progress     6/10 (60 %) at ") || !strings.Contains(text, "it's page 6") {
		t.Errorf("show: %s", text)
	}
	env := h.must(0, "claim", "q", "--env", "--wait", "1m")
	out, err := exec.Command("sh", "-c", env+`printf '%s of %s: %s' "$QSIDECAR_PROGRESS_DONE" "$QSIDECAR_PROGRESS_TOTAL" "$QSIDECAR_PROGRESS_DATA"`).Output()
	if err != nil || string(out) != "6 of 10: it's page 6" {
		t.Errorf("the next claim has %s (%v)", out, err)
	}
}
