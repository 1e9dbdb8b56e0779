package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRenamedKeys checks that a key of an earlier draft is an error at its line and column,
// and that the error names the new key.
func TestRenamedKeys(t *testing.T) {
	for src, want := range map[string]string{
		"databases:\n  main: {url: 'sqlite:x', host_lease: 30s}":  `c.yaml:2:27: unknown key "host_lease": it is called sidecar_timeout now`,
		"databases:\n  main:\n    url: sqlite:x\n    max_held: 1": `c.yaml:4:5: unknown key "max_held": it is called max_transactions now`,
		"limits: {held: 1}":                `c.yaml:1:10: unknown key "held": it is called jobs_per_connection now`,
		"limits: {buffered: 1}":            `c.yaml:1:10: unknown key "buffered": it is called buffer_memory now`,
		"defaults: {keep: 1h}":             `c.yaml:1:12: unknown key "keep": write retention: {done: …, dead: …}`,
		"defaults:\n  keep_dead: 1h":       `c.yaml:2:3: unknown key "keep_dead": write retention: {done: …, dead: …}`,
		"queues:\n  q: {keep: 1h}":         `c.yaml:2:7: unknown key "keep": write retention: {done: …, dead: …}`,
		"queues:\n  q: {keep_dead: 1h}":    `c.yaml:2:7: unknown key "keep_dead": write retention: {done: …, dead: …}`,
		"queues:\n  q: {hold: state}":      `c.yaml:2:7: unknown key "hold": it is called claim_mode now: write claim_mode: update or claim_mode: transaction`,
		"queues: {q: {host_lease: 1s}}":    `c.yaml:1:14: unknown key "host_lease"; known here: database`,
		"defaults: {retention: {keep: 1}}": `c.yaml:1:24: unknown key "keep"; known here: done, dead`,
	} {
		_, err := Parse("c.yaml", []byte(src+"\n"), noEnv)
		if got := Problems(err); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s\ngives %q\nwant  %s", src, got, want)
		}
	}
}

// TestChangesOfRetention checks that a reload lists a changed retention as the file writes it.
func TestChangesOfRetention(t *testing.T) {
	parse := func(src string) Config {
		c, err := Parse("c.yaml", []byte(src), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	got := Changes(parse("queues: {q: {}}"), parse("defaults: {retention: {done: 1h, dead: forever}}\nqueues: {q: {retention: {dead: 7d}}}"))
	want := []string{"defaults.retention.dead: 30d → forever", "defaults.retention.done: 0s → 1h", "queues.q.retention.dead: none → 7d"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}
