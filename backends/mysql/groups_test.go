package mysql

import (
	"slices"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestAdmissionCountsAfterItsLock lets an admission wait for another one of the group. If it counted with the snapshot from before
// the wait, both would give the only slot away.
func TestAdmissionCountsAfterItsLock(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		first, second := open(t, Options{URL: m.URL(name)}), open(t, Options{URL: m.URL(name)})
		c := connect(t, m, name)
		enqueue := func(s *Store, priority int16) {
			w := backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Group: "a", Priority: priority}}}
			r, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{w}})
			if err != nil {
				t.Error(err)
			}
			s.Admit(t.Context(), r.Groups)
		}
		done := make(chan struct{})
		first.beforeCommit(func() { // the commit that stores the job
			first.beforeCommit(func() { // its admission
				go func() {
					defer close(done)
					enqueue(second, 5)
				}()
				testwait.Until(t, "the other admission waits, or has given up", func() bool {
					select {
					case <-done:
						return true
					default:
					}
					waits := 0
					if err := c.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM information_schema.innodb_trx t INNER JOIN information_schema.processlist p
						ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()`).Scan(&waits); err != nil {
						t.Error(err)
						return true
					}
					return waits > 0
				})
			})
		})
		enqueue(first, 0)
		testwait.Closed(t, "the other enqueue", done)
		st, err := first.Stats(t.Context(), "q")
		if err != nil || st[0].Ready != 1 || st[0].Blocked != 1 {
			t.Errorf("the statistics are %+v, %v: want one job ready and one blocked", st, err)
		}
	})
}

// TestCostOfGroupsDoesNotGrow checks that claims, scans for due work and admissions don't read the blocked jobs, beside one group with
// many and many groups, while the server's statistics are those of an empty table.
func TestCostOfGroupsDoesNotGrow(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, name := crowded(t, m)
		must(t, m, name, `INSERT INTO qsidecar_jobs (queue, group_name, group_noticed)
			WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 900)
			SELECT 'q', IF(x.x = 1, 'large', n.i), IF(x.x = 2, NULL, 1) FROM n, (SELECT 1 AS x UNION ALL SELECT 2 UNION ALL SELECT 3) AS x`,
			"INSERT INTO qsidecar_admissions (queue, group_name) SELECT queue, group_name FROM qsidecar_jobs WHERE group_name IS NOT NULL",
			"INSERT INTO qsidecar_admitted (queue, group_name, job) SELECT 'q', id, id FROM qsidecar_jobs LIMIT 900")
		within := func(what string, most int64, f func(tx *tx)) {
			t.Helper()
			if n := reads(t, s, f); n > most {
				t.Errorf("%s reads %d rows, want at most %d", what, n, most)
			}
		}
		within("a claim", 40, func(tx *tx) {
			b := claimOf(1, 10, 1)
			tx.o.Queues = []string{"q"}
			tx.StartClaims(b.Sidecar, b.Claims, nil)
		})
		within("the query for due work", 150, func(tx *tx) {
			q := core.DueQuery{Waiting: []string{"q"}, Pieces: []core.Piece{{Segment: cursor.Whole}}, Owners: true}
			tx.queryDue(q, []int64{1}, newDueRows(q))
		})
		within("a search for groups", 2000, func(tx *tx) {
			var searches core.GroupSearches
			for source := range searches {
				searches[source] = core.GroupSearch{After: core.Group{Queue: "q", Name: "8"}, Limit: 5}
			}
			found, err := tx.FindGroups(t.Context(), searches)
			for source := range found {
				if err != nil || len(found[source]) != 5 || !slices.IsSortedFunc(found[source], core.CompareGroups) {
					t.Errorf("found %v, %v", found, err)
				}
			}
		})
		for _, group := range []string{"large", "7"} {
			within("an admission in the group "+group, 70, func(tx *tx) {
				admitted := 0
				if _, _, err := tx.Admit(t.Context(), []core.Group{{Queue: "q", Name: group}}, 10, func(string, int32, int64, int64) { admitted++ }); err != nil {
					t.Error(err)
				}
				if err := tx.Flush(t.Context()); err != nil || admitted != 1 {
					t.Errorf("%d jobs are admitted, %v", admitted, err)
				}
			})
		}
		within("leaving a slot", 20, func(tx *tx) { tx.LeaveGroups([]int64{1, 2, 3}) })
		within("a list of blocked jobs", 60, func(tx *tx) { tx.blocked("q", listStart, 10, func(*session.Result) {}) })
	})
}

// TestDeletedMembersLeaveNothing deletes a job that has a slot, as another program does. No job waits for the slot, so no admission follows.
func TestDeletedMembersLeaveNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		write(t, s, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Group: "a"}}})
		must(t, m, name, "DELETE FROM qsidecar_jobs")
		if err := s.cleanAdmitted(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10}); err != nil {
			t.Fatal(err)
		}
		for _, table := range []string{"qsidecar_admitted", "qsidecar_admissions"} {
			if n := numberOf(t, m, name, "SELECT COUNT(*) FROM "+table); n != 0 {
				t.Errorf("%s has %d rows", table, n)
			}
		}
	})
}

// TestCancelledMembers cancels a job that has a slot and a blocked one: the next job gets the slot.
func TestCancelledMembers(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s := open(t, Options{URL: m.URL(m.Database(t))})
		var ids []string
		for range 3 {
			ids = append(ids, write(t, s, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Group: "a"}}}).Stored[0].ID)
		}
		states := func() (all []backends.State) {
			views, err := s.Peek(t.Context(), backends.Peek{Queue: "q", IDs: ids, Max: 9})
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range views {
				all = append(all, v.State)
			}
			return all
		}
		operate := func(c backends.Command, want ...backends.State) {
			t.Helper()
			if _, _, err := s.Command(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10}); err != nil {
				t.Fatal(err)
			}
			if got := states(); !slices.Equal(got, want) {
				t.Errorf("the jobs are %v, want %v", got, want)
			}
		}
		operate(backends.Command{Kind: backends.Cancel, Queue: "q", IDs: ids[:2]}, backends.StateDead, backends.StateDead, backends.StateReady)
		operate(backends.Command{Kind: backends.Retry, Queue: "q", IDs: ids[:2]}, backends.StateBlocked, backends.StateBlocked, backends.StateReady)
		operate(backends.Command{Kind: backends.Cancel, Queue: "q", IDs: ids[2:]}, backends.StateReady, backends.StateBlocked, backends.StateDead)
	})
}
