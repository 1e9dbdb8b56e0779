package main

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// completions returns what the completion of a shell offers after these arguments. The last
// one is incomplete.
func (h *host) completions(args ...string) (words []string) {
	h.t.Helper()
	r := h.run(append([]string{"__complete"}, args...)...)
	if r.code != 0 {
		h.t.Fatalf("completion of %v: %+v", args, r)
	}
	for line := range strings.Lines(r.out) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(word, ":") {
			words = append(words, word)
		}
	}
	return words
}

// TestCompletion checks that completion offers commands, states, queues and jobs of the
// running sidecar.
func TestCompletion(t *testing.T) {
	h := newHost(t)
	if got := h.completions("stats", ""); got != nil {
		t.Errorf("without a sidecar: %v", got)
	}
	h.serve()
	for _, queue := range []string{"mail", "mail-slow", "sms"} {
		h.must(0, "enqueue", queue, "1")
	}
	id := strings.TrimSpace(h.must(0, "enqueue", "dying", "1"))
	h.must(0, "nack", h.claim("dying").Lease, "--dead")
	all := []string{"dying", "mail", "mail-slow", "sms"}
	states := []string{"ready", "blocked", "scheduled", "claimed", "done", "dead"}
	for _, row := range []struct {
		args []string // split at spaces
		want []string
	}{
		{[]string{"enq"}, []string{"enqueue"}},
		{[]string{"stats", ""}, all},
		{[]string{"enqueue", "m"}, []string{"mail", "mail-slow"}},
		{[]string{"enqueue", "mail", ""}, nil},
		{[]string{"claim", "mail", "s"}, []string{"sms"}},
		{[]string{"work", "mail", ""}, []string{"dying", "mail-slow", "sms"}},
		{[]string{"work", "mail", "--", ""}, nil},
		{[]string{"retry", "dying", ""}, []string{id}},
		{[]string{"retry", "dying", id, ""}, nil},
		{[]string{"show", "sm"}, []string{"sms"}},
		{[]string{"peek", "mail", "--state", ""}, states},
		{[]string{"purge", "mail", "--state", ""}, slices.DeleteFunc(slices.Clone(states), func(s string) bool { return s == "claimed" })},
		{[]string{"serve", "--log-level", ""}, []string{"debug", "info", "warn", "error"}},
		{[]string{"serve", "--config", ""}, []string{"yaml", "yml"}},
		{[]string{"stats", "--socket", filepath.Join(h.dir, "none"), ""}, nil},
	} {
		got := h.completions(row.args...)
		if row.args[0] != "peek" && row.args[0] != "purge" && row.args[0] != "serve" {
			slices.Sort(got)
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("qsidecar %s: %v, want %v", strings.Join(row.args, " "), got, row.want)
		}
	}
}

// TestCompletionDoesNotWait checks that a sidecar that does not answer ends the completion
// with nothing.
func TestCompletionDoesNotWait(t *testing.T) {
	h := newHost(t)
	if err := os.MkdirAll(filepath.Dir(h.socket()), 0o700); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	defer close(over)
	listenUnix(t, h.socket(), func(net.Conn) { <-over })
	if r := h.run("__complete", "stats", ""); r.code != 0 || strings.Contains(r.out+r.err, "answer") {
		t.Errorf("%+v", r)
	}
}
