package mysql

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/internal/testdocs"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestDocumentedStatements checks that the INSERTs of README.md create jobs.
func TestDocumentedStatements(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		c := connect(t, m, name)
		runSQL(t, c, "SET SESSION time_zone = '+05:45'") // far from UTC, to find code that relies on it
		from := serverTime(t, m)
		runSQL(t, c, testdocs.CodeBlocks(t, "README.md", "## A plain INSERT is an enqueue", "sql")...)
		to := serverTime(t, m)
		if _, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10}); err != nil { // it schedules jobs with a run_at
			t.Fatal(err)
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
		const hour, second = int64(time.Hour / time.Microsecond), int64(time.Second / time.Microsecond) // run_at has whole seconds
		if at := j.RunAt.UnixMicro(); at < from+hour-second || at > to+hour {
			t.Errorf("it is due at %v, want an hour after the INSERT", j.RunAt)
		}
	})
}

// TestDocumentedMove checks the move that README.md documents, and what happens to claimed jobs.
func TestDocumentedMove(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		from, to := m.Database(t), m.Database(t)
		s, err := Open(t.Context(), Options{URL: m.URL(from)})
		if err != nil {
			t.Fatal(err)
		}
		backendtest.CheckRelocation(t, s, func() backends.Backend {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			for _, sql := range testdocs.CodeBlocks(t, "README.md", "## Backup, restore and move", "sql") {
				runSQL(t, connect(t, m, from), strings.NewReplacer("jobs_new", to, "jobs_old", from).Replace(sql))
			}
			if n := numberOf(t, m, from, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()"); n != 0 {
				t.Errorf("%d tables are left behind", n)
			}
			return open(t, Options{URL: m.URL(to)})
		})
	})
}
