package sqlite

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/internal/testdocs"
)

// TestDocumentedStatements runs the INSERTs of README.md and checks that the rows are jobs.
func TestDocumentedStatements(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	for _, sql := range testdocs.CodeBlocks(t, "README.md", "## A plain INSERT is an enqueue", "sql") {
		shell(t, s.path, sql)
	}
	ready, err := s.Peek(t.Context(), backends.Peek{Queue: "mail", State: backends.StateReady, Max: 10})
	if err != nil || len(ready) != 1 || string(ready[0].Payload) != `{"to": "ada@example.com"}` {
		t.Errorf("ready: %+v, %v", ready, err)
	}
	scheduled, err := s.Peek(t.Context(), backends.Peek{Queue: "mail", State: backends.StateScheduled, Max: 10})
	if err != nil || len(scheduled) != 1 {
		t.Fatalf("scheduled: %+v, %v", scheduled, err)
	}
	j := scheduled[0]
	if string(j.Payload) != "\x00\xff" || j.Priority != 5 || j.MaxAttempts != 3 || !cmp.Equal(j.Headers, map[string]string{"trace": "4bf92f"}) {
		t.Errorf("the second job is %+v", j)
	}
	if in := j.RunAt.Sub(j.EnqueuedAt); in.Round(time.Minute) != time.Hour {
		t.Errorf("it is due in %v, want an hour", in)
	}
}

// TestDocumentedMove makes a copy as README.md describes, and checks what happens to its claimed jobs.
func TestDocumentedMove(t *testing.T) {
	t.Parallel()
	from, to := fresh(t), filepath.Join(t.TempDir(), "copy.db")
	backendtest.CheckRelocation(t, from, func() backends.Backend {
		for _, sql := range testdocs.CodeBlocks(t, "README.md", "## Backup, restore and move", "sql") {
			if err := exec(t, from, strings.ReplaceAll(sql, "/backup/qsidecar.db", to)); err != nil {
				t.Fatal(err)
			}
		}
		return open(t, to)
	})
}
