package postgres

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/internal/testdocs"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestDocumentedStatements runs the statements that README.md documents: a producer's
// rights are enough for its INSERTs, and the rows are jobs.
func TestDocumentedStatements(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		t.Cleanup(func() {
			if err := p.Exec(context.Background(), "DROP ROLE app_producer"); err != nil {
				t.Error(err)
			}
		})
		s := open(t, Options{URL: filled(t, p)})
		for _, sql := range testdocs.CodeBlocks(t, "README.md", "## Roles", "sql") {
			must(t, s.o.URL, sql)
		}
		producer := as(t, s.o.URL, "app_producer")
		for _, sql := range testdocs.CodeBlocks(t, "README.md", "## A plain INSERT is an enqueue", "sql") {
			must(t, producer, sql)
		}
		if err := exec(t, producer, "SELECT FROM qsidecar.qsidecar_jobs"); err == nil {
			t.Error("a producer reads jobs")
		}
		views := map[backends.State][]backends.View{}
		for _, state := range []backends.State{backends.StateReady, backends.StateScheduled} {
			v, err := s.Peek(t.Context(), backends.Peek{Queue: "mail", State: state, Max: 10})
			if err != nil {
				t.Fatal(err)
			}
			views[state] = v
		}
		ready, scheduled := views[backends.StateReady], views[backends.StateScheduled]
		if len(ready) != 1 || len(scheduled) != 1 {
			t.Fatalf("%d ready and %d scheduled, want one each", len(ready), len(scheduled))
		}
		if got := string(ready[0].Payload); got != `{"to": "ada@example.com"}` {
			t.Errorf("the first job's payload is %q", got)
		}
		j := scheduled[0]
		if string(j.Payload) != `{"file": "C:\\temp"}` || j.Priority != 5 || j.MaxAttempts != 3 || !cmp.Equal(j.Headers, map[string]string{"trace": "4bf92f"}) {
			t.Errorf("the second job is %+v", j)
		}
		if in := j.RunAt.Sub(j.EnqueuedAt); in.Round(time.Second) != time.Hour {
			t.Errorf("it is due in %v, want an hour", in)
		}
	})
}

// TestDocumentedMove makes a copy as README.md describes, and checks what happens to its claimed jobs.
func TestDocumentedMove(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		at := filled(t, p)
		from, err := Open(t.Context(), Options{URL: at})
		if err != nil {
			t.Fatal(err)
		}
		backendtest.CheckRelocation(t, from, func() backends.Backend {
			if err := from.Close(); err != nil {
				t.Fatal(err)
			}
			u, err := url.Parse(at)
			if err != nil {
				t.Fatal(err)
			}
			old := strings.TrimPrefix(u.Path, "/")
			t.Cleanup(func() {
				if err := p.Exec(context.Background(), "DROP DATABASE IF EXISTS "+old+"_new WITH (FORCE)"); err != nil {
					t.Error(err)
				}
			})
			for _, sql := range testdocs.CodeBlocks(t, "README.md", "## Backup, restore and move", "sql") {
				if err := p.Exec(t.Context(), strings.NewReplacer("jobs_new", old+"_new", "jobs_old", old).Replace(sql)); err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
			}
			u.Path += "_new"
			return open(t, Options{URL: u.String()})
		})
	})
}
