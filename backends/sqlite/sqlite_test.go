package sqlite

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Make the Store count queues by pages, however few jobs a test has.
func init() { core.PageRows = 7 }

func open(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func fresh(t testing.TB) *Store { return open(t, filepath.Join(t.TempDir(), "jobs.db")) }

// exec runs SQL on its own connection, like the sqlite3 shell.
func exec(t testing.TB, s *Store, sql string) error {
	t.Helper()
	c, err := connect(s.path, "busy_timeout=10000")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	}()
	return c.once(sql)
}

func claim(t testing.TB, s *Store, sidecar backends.Identity, queue string, n int) []backends.Job {
	t.Helper()
	if _, err := s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: sidecar, Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	c := backends.Claim{Queues: []backends.Policy{{Queue: queue, MaxAttempts: 20}}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}
	for i := range n {
		c.Slots = append(c.Slots, backends.Slot{Token: backends.Token{Sidecar: sidecar, Number: uint64(i)}})
	}
	r, err := s.Commit(t.Context(), backends.CommitContent{Sidecar: sidecar, Claims: []backends.Claim{c}})
	if err != nil {
		t.Fatal(err)
	}
	return r.Claims[0].Jobs
}

func TestPlainInsert(t *testing.T) {
	t.Parallel()
	began := time.Now()
	s := fresh(t)
	for _, sql := range []string{
		`INSERT INTO qsidecar_jobs (queue, payload) VALUES ('q', 'hello')`,
		`INSERT INTO qsidecar_jobs (queue, payload, priority, headers, max_attempts) VALUES ('q', x'00ff', 5, '{"a":"b","n":1}', 3)`,
		`INSERT INTO qsidecar_jobs (queue) VALUES ('q')`,
		`INSERT INTO qsidecar_jobs (queue, payload) VALUES ('q', 42)`,
		`INSERT INTO qsidecar_jobs (queue, run_at) VALUES ('q', '2001-02-03 04:05:06')`,
		`INSERT INTO qsidecar_jobs (queue, run_at) VALUES ('q', '2101-02-03T04:05:06.789Z')`,
		`INSERT INTO qsidecar_jobs (queue, run_at) VALUES ('q', 4136846706789)`,
	} {
		if err := exec(t, s, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	var got []string
	for _, j := range claim(t, s, 1, "q", 10) {
		got = append(got, string(j.Payload))
		if j.Priority == 5 {
			if diff := cmp.Diff(map[string]string{"a": "b", "n": "1"}, j.Headers); diff != "" || j.MaxAttempts != 3 {
				t.Errorf("headers %s, max_attempts %d", diff, j.MaxAttempts)
			}
		}
		if j.EnqueuedAt.Sub(began).Abs() > time.Hour { // a wrong time zone would cause such a difference
			t.Errorf("enqueued at %v, and it is %v", j.EnqueuedAt, began)
		}
	}
	if diff := cmp.Diff([]string{"\x00\xff", "hello", "", "42", ""}, got); diff != "" {
		t.Errorf("payloads (-want +got):\n%s", diff)
	}
	views, err := s.Peek(t.Context(), backends.Peek{Queue: "q", State: backends.StateScheduled, Max: 10})
	if err != nil || len(views) != 2 {
		t.Fatalf("scheduled: %v, %v", views, err)
	}
	want := time.Date(2101, 2, 3, 4, 5, 6, 789e6, time.UTC)
	for _, v := range views {
		if !v.RunAt.Equal(want) {
			t.Errorf("run_at %v, want %v", v.RunAt, want)
		}
	}
}
