package adopted_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestHiddenJobs checks that jobs from the time when a queue had no table are found, once the config maps it to one.
func TestHiddenJobs(t *testing.T) {
	t.Parallel()
	k := newSQLiteKit(t, sqliteMessages, map[string]mapping.Table{"other": sqliteMessagesTable()})
	if found, err := k.HiddenJobs(t.Context()); err != nil || len(found) != 0 {
		t.Fatalf("without such jobs: %v, %v", found, err)
	}
	k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "orders", Payload: []byte("a")}, {Queue: "orders", Payload: []byte("b")}}}, 0)
	k.Store = k.reopened(map[string]mapping.Table{"orders": sqliteMessagesTable()})
	found, err := k.HiddenJobs(t.Context())
	if err != nil || len(found) != 1 {
		t.Fatalf("with two jobs of orders: %v, %v", found, err)
	}
	if f := found[0]; !strings.Contains(f.Text, "the queue orders has jobs in qsidecar_jobs") || !strings.Contains(f.Text, "(2 ready, 0 blocked") {
		t.Errorf("found %q", f.Text)
	}
	examined, err := k.Examine(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(examined, found[0]) {
		t.Errorf("check finds %v", examined)
	}
}
