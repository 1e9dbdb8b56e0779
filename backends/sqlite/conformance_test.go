package sqlite

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/backends/sqlite/internal/dialect"
	"github.com/qsidecar/qsidecar/backends/sqlite/migrate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	backendtest.Run(t, func(t *testing.T) *backendtest.Database {
		// The clock stands still, except when the test shifts it.
		var now atomic.Pointer[time.Time]
		began := time.Now()
		now.Store(&began)
		path := filepath.Join(t.TempDir(), "jobs.db")
		again := func() *Store {
			s, err := Open(t.Context(), Options{Path: path, Now: func() time.Time { return *now.Load() }})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			return s
		}
		s := again()
		return &backendtest.Database{
			Backend:     s,
			OpenAnother: func() backends.Backend { return again() },
			AdvanceClock: func(d time.Duration) {
				moved := now.Load().Add(d)
				now.Store(&moved)
			},
			LoseCommit: s.loseCommit,
			BeforeCommit: func(f func()) {
				hook := func(bool) error {
					s.fault.Store(nil)
					f()
					return nil
				}
				s.fault.Store(&hook)
			},
			RemoveTable: func(table string) func() {
				rename := func(from, to string) {
					if err := exec(t, s, "ALTER TABLE "+from+" RENAME TO "+to); err != nil {
						t.Fatal(err)
					}
				}
				rename("qsidecar_"+table, "away")
				return func() { rename("away", "qsidecar_"+table) }
			},
			EmptyTable: func(table string) {
				if err := exec(t, s, "DELETE FROM "+table); err != nil {
					t.Fatal(err)
				}
			},
			SmallTables: []string{"qsidecar_meta", "qsidecar_failures", "qsidecar_keys", "qsidecar_sidecars", "qsidecar_queues", "qsidecar_gates", "qsidecar_capped", "qsidecar_cancelled", "qsidecar_progress", "qsidecar_pending", "qsidecar_schedules", "qsidecar_batches", "qsidecar_batch_members", "qsidecar_batch_notes", "qsidecar_admissions", "qsidecar_history", "qsidecar_commits", "sqlite_sequence"},
			RefuseJobs: func(queue, reason string) {
				if err := exec(t, s, fmt.Sprintf(`CREATE TRIGGER refuse BEFORE INSERT ON qsidecar_jobs
					WHEN NEW.queue = %s BEGIN SELECT RAISE(ABORT, %s); END`, dialect.New().Text(queue), dialect.New().Text(reason))); err != nil {
					t.Fatal(err)
				}
			},
			AdmitsInCommits: true,
			RefuseChanges: func(r backendtest.Refusal) (allow func()) {
				run := func(sql string, args ...any) {
					for _, on := range r.On() {
						if err := exec(t, s, fmt.Sprintf(sql, append([]any{on}, args...)...)); err != nil {
							t.Fatal(err)
						}
					}
				}
				run(`CREATE TRIGGER refuse_%s BEFORE %[1]s ON qsidecar_jobs WHEN %s BEGIN SELECT RAISE(ABORT, %s); END`, r.When(dialect.New().Text), dialect.New().Text(r.Reason))
				return func() { run("DROP TRIGGER refuse_%s") }
			},
			InsertJob: func(queue, payload string) {
				sql := fmt.Sprintf(`INSERT INTO qsidecar_jobs (queue, payload) VALUES (%s, %s)`, dialect.New().Text(queue), dialect.New().Text(payload))
				if err := exec(t, s, sql); err != nil {
					t.Fatal(err)
				}
			},
			InvalidValues: oddValues,
			InsertRow: func(column, expression string, old bool) error {
				if !old {
					return exec(t, s, backendtest.InsertSQL("qsidecar_jobs", column, expression))
				}
				if err := exec(t, s, "DROP TRIGGER qsidecar_usable"); err != nil {
					t.Fatal(err)
				}
				err := exec(t, s, backendtest.InsertSQL("qsidecar_jobs", column, expression))
				if err := exec(t, s, usable); err != nil {
					t.Fatal(err)
				}
				return err
			},
		}
	})
}

// usable is the trigger that rows can be older than, if a version adds it.
var usable = regexp.MustCompile(`(?s)CREATE TRIGGER qsidecar_usable .*?\nEND;`).FindString(migrate.SQL(0))

// loseCommit breaks the connection at the next commit.
func (s *Store) loseCommit(before bool) {
	hook := func(now bool) error {
		if now != before {
			return nil
		}
		s.fault.Store(nil)
		return errors.New("the answer to the commit got lost")
	}
	s.fault.Store(&hook)
}

// TestPlans fails if a statement would scan a whole table or sort rows that
// an index has in order, because its cost would grow with the table.
func TestPlans(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	c, err := connect(s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	for _, sql := range s.sql.all {
		if sql == s.sql.lastNumber { // a repair
			continue
		}
		sorts := sql == s.sql.delayed || sql == s.sql.admitted // the limit of the group bounds what they sort
		if err := c.query(t.Context(), "EXPLAIN QUERY PLAN "+sql, func(r row) error {
			step := r.text(3)
			// These have one row per sidecar or queue, or queue and hour, or for each cancelled claim of the last seconds, or the statement reads only their beginning.
			walk := strings.HasPrefix(step, "SCAN") && !slices.Contains([]string{"SCAN qsidecar_sidecars", "SCAN qsidecar_queues", "SCAN qsidecar_history", "SCAN qsidecar_commits", "SCAN qsidecar_cancelled",
				"SCAN sqlite_sequence", "SCAN CONSTANT ROW", "SCAN (subquery-1)", "SCAN (subquery-2)", "SCAN qsidecar_jobs USING INDEX qsidecar_scheduled"}, step)
			if walk || !sorts && strings.Contains(step, "TEMP B-TREE") || strings.Contains(step, "qsidecar_jobs USING AUTOMATIC") {
				t.Errorf("%s\n\t%s", sql, step)
			}
			return nil
		}, make([]any, 22)...); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}
