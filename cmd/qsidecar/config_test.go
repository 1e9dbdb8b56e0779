package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestConfigShowsChanges checks the settings, and the history of reloads with a rejected config.
func TestConfigShowsChanges(t *testing.T) {
	x := startWithoutWatch(t, one)
	x.write(x.file, one+"defaults: {max_attempts: 3}\n")
	x.must(0, "reload")
	x.write(x.file, "queues: {one: {timeout: never}}\n")
	for range 2 { // the same error again isn't a change
		x.run("reload")
	}
	var got struct {
		Settings []string
		Reloads  []struct {
			At         int64
			Generation int
			Changes    []string
			Error      string
		}
	}
	if err := json.Unmarshal([]byte(x.must(0, "config", "--json")), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Reloads) != 3 || got.Reloads[0].Generation != 2 || !strings.Contains(got.Reloads[0].Error, "timeout") ||
		got.Reloads[1].Generation != 2 || got.Reloads[1].Changes[0] != "defaults.max_attempts: 20 → 3" || got.Reloads[2].Generation != 1 || got.Reloads[2].At == 0 {
		t.Errorf("the history is %+v", got.Reloads)
	}
	out := x.must(0, "config")
	for _, want := range []string{"defaults.max_attempts: 3\n", "listen " + x.socket() + ".mode: 0660\n", "queues.one: {}\n", " generation 2: REJECTED: ", " generation 1: started\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("it doesn't show %q:\n%s", want, out)
		}
	}
}
