package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/protocol"
)

// jsonError is an error on stderr in the form of the protocol.
type jsonError struct {
	OK    *bool
	Error struct{ Code, Message, Field string }
}

// jsonError returns the JSON error of a run, which must be the only line on stderr.
func (r result) jsonError(t *testing.T) (e jsonError) {
	t.Helper()
	if strings.Count(r.err, "\n") != 1 {
		t.Fatalf("stderr has %q, want one line", r.err)
	}
	if err := json.Unmarshal([]byte(r.err), &e); err != nil || e.OK == nil || *e.OK {
		t.Fatalf("stderr has %q: %v", r.err, err)
	}
	return e
}

// TestErrorsAsJSON checks that --json prints errors of every kind as JSON, with the exit code
// and the text that they have without it.
func TestErrorsAsJSON(t *testing.T) {
	h := newHost(t)
	for _, row := range []struct {
		args    string
		code    string
		message string
	}{
		{"stats", "unavailable", "no sidecar answers on "},
		{"stats a b", "bad_request", "stats takes at most one queue"},
		{"stats --colour", "bad_request", "unknown flag: --colour"},
		{"enqeue", "bad_request", "Did you mean this?"},
		{"check --config " + filepath.Join(h.dir, "none.yaml"), "bad_request", "the config file cannot be read"},
		{"claim q", "unavailable", "no sidecar answers on "},
		{"serve", "bad_request", "unknown flag: --json"},
		{"purge q --state dead", "bad_request", "add --yes"},
	} {
		args := strings.Fields(row.args)
		r := h.run(append(args, "--json")...)
		plain := r
		if row.args != "serve" {
			plain = h.run(args...)
		}
		e := r.jsonError(t)
		if r.code != plain.code || e.Error.Code != row.code || !strings.Contains(e.Error.Message, row.message) {
			t.Errorf("%s --json: exit code %d and %+v, want %d, %s and %q", row.args, r.code, e, plain.code, row.code, row.message)
		}
		if plain.err != "qsidecar: "+e.Error.Message+"\n" && row.args != "serve" {
			t.Errorf("%s: without --json the text is %q, with it %q", row.args, plain.err, e.Error.Message)
		}
	}
	// Not a flag of qsidecar.
	h.run("work", "q", "--", "no-such-program", "--json").wantStderr(t, exitUsage, "qsidecar: no-such-program cannot be run")

	h.serve()
	h.must(0, "enqueue", "q", "1")
	r := h.run("enqueue", "no queue", "1", "--json")
	if e := r.jsonError(t); r.code != exitUsage || e.Error.Code != string(protocol.CodeBadRequest) || strings.Contains(e.Error.Message, "bad_request: ") {
		t.Errorf("an error of the sidecar: %d, %+v", r.code, e)
	}
	r = h.run("ack", "1.none", "--json")
	if e := r.jsonError(t); r.code != exitLeaseLost || e.Error.Code != string(protocol.CodeLeaseLost) {
		t.Errorf("a lost lease: %d, %+v", r.code, e)
	}
	if r := h.run("claim", "empty", "--json"); r.code != exitNoJob || r.err != "" || r.out != "" {
		t.Errorf("no job: %+v", r)
	}
}
