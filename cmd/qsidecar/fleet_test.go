package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestFleet checks that a sidecar lists itself and another one of the same database.
func TestFleet(t *testing.T) {
	x := startWithoutWatch(t, one)
	second := newHost(t)
	second.serve("--config", second.file("c.yaml", "databases: {shared: {url: 'sqlite:"+x.dir+"/state/qsidecar/qsidecar.db'}}\n"+one))
	var list string
	testwait.Until(t, "both sidecars are listed", func() bool { // the list can be as old as the first one's start
		list = x.must(0, "fleet", "--json")
		return strings.Count(list, "\n") == 2
	})
	selves := 0
	for line := range strings.Lines(list) {
		var s struct {
			Name, State, Version, Database string
			Leases                         *int
			Self                           bool
		}
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatal(err)
		}
		if s.Name == "" || s.State != "alive" || s.Version == "" || s.Database != "main" || s.Leases == nil {
			t.Errorf("a sidecar is listed as %s", line)
		}
		if s.Self {
			selves++
		}
	}
	if selves != 1 {
		t.Errorf("%d sidecars are the one that answers", selves)
	}
	if out := x.must(0, "fleet"); !strings.HasPrefix(out, "SIDECAR ") || !strings.Contains(out, "this one") {
		t.Errorf("the fleet is shown as\n%s", out)
	}
}
