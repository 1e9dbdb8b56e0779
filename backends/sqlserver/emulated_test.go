package sqlserver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/backends/sqlserver/migrate"
)

func TestManyMakeTheTables(t *testing.T) {
	t.Parallel()
	_, _, o := emulation(t, standIn(t), "first")
	manyMakeTheTables(t, o)
	manyMakeTheTables(t, Options{URL: o.URL, Schema: "first", driver: o.driver})
}

// nextVersion is a migration that follows the latest one: a table. Programs of migrate.Latest can run beside a program that
// has it.
const nextVersion = `IF OBJECT_ID(N'{s}.qsidecar_test') IS NULL
  CREATE TABLE {s}.qsidecar_test (
    id bigint NOT NULL CONSTRAINT qsidecar_test_id PRIMARY KEY
  );
GO
`

// TestNeighbours: a sidecar of this version works beside one of the next, which migrates the tables.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	url := standIn(t)
	s, _, o := emulation(t, url, "neighbours")
	o.later = []string{nextVersion}
	backendtest.CheckNeighbours(t, s, func() backends.Backend { return open(t, o) })
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	version := 0
	if err := c.QueryRow(t.Context(), "SELECT version + (SELECT count(*) FROM neighbours.qsidecar_test) FROM neighbours.qsidecar_meta").Scan(&version); err != nil || version != migrate.Latest+1 {
		t.Errorf("the tables are of version %d, %v", version, err)
	}
}

func TestPlainInsertLater(t *testing.T) {
	t.Parallel()
	url := standIn(t)
	s, _, _ := emulation(t, url, "plain")
	plainInsertLater(t, s, func(sql string) {
		c, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		if _, err := c.Exec(t.Context(), strings.NewReplacer("[", `"`, "]", `"`).Replace(sql)); err != nil {
			t.Fatal(err)
		}
	})
}

// TestDocumentedStatements shows that the INSERTs of README.md are jobs.
func TestDocumentedStatements(t *testing.T) {
	t.Parallel()
	s, e, _ := emulation(t, standIn(t), defaultSchema)
	documentedInserts(t, s, func(sql string) {
		c, err := e.Connect(t.Context())
		if err == nil {
			_, err = c.(*emulated).ExecContext(t.Context(), strings.ReplaceAll(sql, "qsidecar.", "[qsidecar]."), nil)
			err = errors.Join(err, c.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

// TestSequenceBehindTheIDs: a sequence that was set back is found by a new Store, by a Store whose connections ended, and by
// the error of the first INSERT. No job is refused, or gets an id that something names.
func TestSequenceBehindTheIDs(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"AtTheStart", "AtAReconnect", "AtTheError"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			url := standIn(t)
			s, e, o := emulation(t, url, "behind")
			enqueue := func(key string) int {
				r, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Key: key}}}}})
				if err != nil {
					t.Fatal(err)
				}
				id, err := strconv.Atoi(r.Writes[0].Stored[0].ID)
				if err != nil {
					t.Fatal(err)
				}
				return id
			}
			enqueue("")
			c, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			}()
			if _, err := c.Exec(t.Context(), `INSERT INTO behind.qsidecar_keys (queue, name, job, expires_at, state) VALUES ('q', 'gone', 70000, now() AT TIME ZONE 'UTC' + interval '1 day', 'done');
				SELECT setval('behind.qsidecar_sequence', 1000, false)`); err != nil {
				t.Fatal(err)
			}
			switch when {
			case "AtTheStart":
				s = open(t, o)
			case "AtAReconnect":
				e.cut()
			}
			for _, key := range []string{"", "k", ""} {
				if id := enqueue(key); id <= 70000 {
					t.Errorf("the id %d is named already", id)
				}
			}
		})
	}
}

// TestCursors shows that a queue's lows move on when its claimed jobs are long gone, that claims then begin there,
// and that a job that is returned behind them is found again.
func TestCursors(t *testing.T) {
	t.Parallel()
	url := standIn(t)
	s, _, _ := emulation(t, url, "cursors")
	if _, err := s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: 1, Kind: backends.HeartbeatJoin, Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	commit := func(writes []backends.Write, slots int) []backends.Job {
		t.Helper()
		b := backends.CommitContent{Sidecar: 1, Writes: writes}
		c := backends.Claim{Queues: []backends.Policy{{Queue: "q", MaxAttempts: 3}}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}
		for n := range slots {
			c.Slots = append(c.Slots, backends.Slot{Token: backends.Token{Sidecar: 1, Number: uint64(n)}})
		}
		b.Claims = []backends.Claim{c}
		r, err := s.Commit(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		return r.Claims[0].Jobs
	}
	put := func(n int) {
		var jobs []backends.NewJob
		for i := range n {
			jobs = append(jobs, backends.NewJob{Queue: "q", Payload: []byte(fmt.Sprint(i))})
		}
		commit([]backends.Write{backends.Enqueue{Jobs: jobs}}, 0)
	}
	low := func() int64 {
		for _, l := range s.Cursors.Lows("q") {
			return l.Position
		}
		return 0
	}
	put(700)
	jobs := commit(nil, 600)
	if len(jobs) != 600 || low() != 0 {
		t.Fatalf("%d given, low %d", len(jobs), low())
	}
	s.opened = s.opened.Add(-2 * settled) // a while later
	more := commit(nil, 10)
	if len(more) != 10 || low() != 0 {
		t.Fatalf("%d given, low %d: nothing was to be proven", len(more), low())
	}
	s.opened = s.opened.Add(-2 * settled)
	more = append(more, commit(nil, 10)...)
	if len(more) != 20 || low() == 0 {
		t.Fatalf("%d given, low %d: it should have moved on", len(more), low())
	}
	// A producer commits a row below the low late, as after a position that it drew long before. No lock showed the
	// row. A claim that scans below the low finds it. The longer such a scan takes, the fewer there are, so the clock
	// of the cursors moves on.
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	if _, err := c.Exec(t.Context(), `INSERT INTO cursors.qsidecar_jobs (queue, payload, position) VALUES ('q', convert_to('late', 'UTF8'), $1)`, low()-1); err != nil {
		t.Fatal(err)
	}
	var later time.Duration
	s.LocalTime = func() time.Time { return time.Now().Add(later) }
	found := false
	for range 25 { // for less time than a cursor is kept
		later += 10 * time.Second
		if jobs := commit(nil, 1); len(jobs) > 0 && string(jobs[0].Payload) == "late" {
			found = true
			break
		}
	}
	if !found {
		t.Error("claims passed a row below the low for 250 s")
	}
	// A job below the low is returned. That is counted, and the next claim scans everything.
	back := jobs[5]
	commit([]backends.Write{backends.Release{Leases: []backends.Lease{{Job: back.ID, Token: back.Token}}, Uncounted: true}}, 0)
	if again := commit(nil, 1); len(again) != 1 || again[0].ID != back.ID || string(again[0].Payload) != "5" {
		t.Errorf("given %+v, want what was given back", again)
	}
}

// TestOldMarksGo shows that the commits of sidecars that ended long ago are deleted, also if no
// key has expired.
func TestOldMarksGo(t *testing.T) {
	t.Parallel()
	url := standIn(t)
	s, _, _ := emulation(t, url, "marks")
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := c.Exec(t.Context(), `INSERT INTO marks.qsidecar_commits (handle, pipeline, number, at)
		SELECT n, 1, 1, now() AT TIME ZONE 'UTC' - interval '8 days' FROM generate_series(1, 20) n`); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10, Prune: true}); err != nil || r.Pruned != 0 || r.PruneMore {
		t.Fatalf("%+v, %v", r, err)
	}
	n := 0
	if err := c.QueryRow(t.Context(), `SELECT count(*) FROM marks.qsidecar_commits WHERE handle BETWEEN 1 AND 20`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d numbers of old commits are left: %v", n, err)
	}
}

// TestManyFailures shows that all failures of a job are deleted with it, however many they are.
func TestManyFailures(t *testing.T) {
	t.Parallel()
	url := standIn(t)
	s, _, _ := emulation(t, url, "failures")
	r, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}, {Queue: "q"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for _, sql := range []string{
		`INSERT INTO failures.qsidecar_failures (job, fence, attempt, cause, message, at)
		SELECT j.id, n, n, 'nack', '', now() AT TIME ZONE 'UTC' FROM failures.qsidecar_jobs j, generate_series(1, 2500) n`,
		`UPDATE failures.qsidecar_jobs SET last_error = ''`,
	} {
		if _, err := c.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if n, _, err := s.Command(t.Context(), backends.Command{Kind: backends.Delete, Queue: "q", IDs: []string{r.Writes[0].Stored[0].ID}}); err != nil || n != 1 {
		t.Fatalf("%d deleted, %v", n, err)
	}
	left := 0
	if err := c.QueryRow(t.Context(), `SELECT count(*) FROM failures.qsidecar_failures`).Scan(&left); err != nil || left != 2500 {
		t.Errorf("%d failures are left (%v), want the 2500 of the other job", left, err)
	}
}
