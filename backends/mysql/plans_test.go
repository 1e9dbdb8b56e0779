package mysql

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/plan"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// crowded creates a database with many rows of every kind, while the server's statistics are those of
// an empty table.
func crowded(t *testing.T, m *testserver.MySQL) (*Store, string) {
	t.Helper()
	name := m.Database(t)
	s := open(t, Options{URL: m.URL(name)})
	join(t, s, 1)
	must(t, m, name, "ALTER TABLE qsidecar_jobs STATS_AUTO_RECALC = 0", "ANALYZE TABLE qsidecar_jobs",
		`INSERT INTO qsidecar_jobs (queue, state, payload, priority, run_at, finished_at, owner, token_sidecar, token_number, claimed_at, prune_at)
			WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 900)
			SELECT IF(n.i % 2 = 0, 'q', 'p'), s.s, '', n.i % 3, IF(s.s = 'scheduled', UTC_TIMESTAMP() + INTERVAL 1 DAY, NULL), IF(s.s IN ('dead', 'done'), UTC_TIMESTAMP(), NULL),
				IF(s.s = 'claimed', 1, NULL), IF(s.s = 'claimed', 1, NULL), IF(s.s = 'claimed', n.i, NULL), IF(s.s = 'claimed', UTC_TIMESTAMP(), NULL), NULL
			FROM n, (SELECT 'ready' AS s UNION ALL SELECT 'scheduled' UNION ALL SELECT 'dead' UNION ALL SELECT 'done' UNION ALL SELECT 'claimed') AS s`,
		"INSERT INTO qsidecar_queues (queue) VALUES ('q'), ('p')")
	return s, name
}

// reads returns how many rows the server read, in sequence or by a key, for f on one connection.
func reads(t *testing.T, s *Store, f func(tx *tx)) (n int64) {
	t.Helper()
	return grown(t, s, "Handler_read%", f)
}

// grown returns by how much the session's counters with those names grow with f on one connection.
func grown(t *testing.T, s *Store, names string, f func(tx *tx)) (n int64) {
	t.Helper()
	c, err := s.pool.Take(t.Context(), &s.Meter)
	if err != nil {
		t.Fatal(err)
	}
	defer s.pool.Put(c)
	count := func() (n int64) {
		if err := c.Each(t.Context(), func(r *session.Result) {
			k := int64(0)
			if _, err := fmt.Sscan(r.Text(1), &k); err != nil {
				t.Error(err)
			}
			n += k
		}, "SHOW SESSION STATUS LIKE '"+names+"'"); err != nil {
			t.Fatal(err)
		}
		return n
	}
	work := &tx{s: s, c: c}
	before := count()
	f(work)
	if err := work.send(t.Context()); err != nil {
		t.Fatal(err)
	}
	n = count() - before
	work.rollback(t.Context())
	return n
}

// learn gives the queue q the cursor that a claim of jobs at these spots leaves. The Store's clock stands still from now on, so that
// no scan of the whole index is due.
func learn(t *testing.T, s *Store, taken ...cursor.Spot) {
	t.Helper()
	now := time.Now()
	s.LocalTime = func() time.Time { return now }
	s.Cursors.Learn("q", cursor.Learned{Asked: now, Taken: taken, All: true, Whole: true})
	if _, ok := s.Cursors.Near("q", now); !ok {
		t.Fatal("the cursor is not used")
	}
}

// TestCostsDoNotGrow checks that what a statement reads depends on what it returns, however many rows of
// each kind exist.
func TestCostsDoNotGrow(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, name := crowded(t, m)
		within := func(what string, most int64, f func(tx *tx)) {
			t.Helper()
			if n := reads(t, s, f); n > most {
				t.Errorf("%s reads %d rows, want at most %d", what, n, most)
			}
		}
		claim := func(lifo bool) func(*tx) {
			return func(tx *tx) {
				b := claimOf(1, 10, 1)
				b.Claims[0].Queues[0].LIFO = lifo
				tx.o.Queues = []string{"q"}
				tx.StartClaims(b.Sidecar, b.Claims, nil)
			}
		}
		within("a claim", 40, claim(false))
		within("a claim of the newest", 40, claim(true))
		learn(t, s, cursor.Spot{Urgency: -2, Position: 1}, cursor.Spot{Urgency: -1, Position: 1}, cursor.Spot{Urgency: 0, Position: 1})
		within("a claim that goes on from three priorities", 40, claim(false))
		within("the query for due work", 160, // some of them are rows of the answers themselves
			func(tx *tx) {
				q := core.DueQuery{Waiting: []string{"q", "p", "none"}, Prune: true, Owners: true}
				for i := range q.Waiting {
					q.Pieces = append(q.Pieces, core.Piece{Queue: i, Segment: cursor.Whole})
				}
				tx.queryDue(q, []int64{1}, newDueRows(q))
			})
		must(t, m, name, "INSERT INTO qsidecar_queues (queue) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT CONCAT('q', n.i) FROM n")
		within("the query for due work of a watched sidecar beside 900 queues", 60,
			func(tx *tx) {
				q := core.DueQuery{Sidecar: 1, Watched: true, Waiting: []string{"q"}, Pieces: []core.Piece{{Segment: cursor.Whole}}, DueFrom: time.Now()}
				tx.queryDue(q, []int64{1}, newDueRows(q))
			})
		within("an ack", 20, func(tx *tx) {
			tx.Ack([]core.Lease{{ID: 1}, {ID: 2}, {ID: 3}}, nil)
		})
		within("an update of three rows", 10, func(tx *tx) {
			var all []*job
			tx.now = session.Instant(time.Now().UnixMicro())
			for id := range int64(3) {
				all = append(all, &job{Row: core.Row{ID: 1 + id, Change: core.Change{Kind: core.Ended, State: backends.StateReady, Attempts: int(id)}}})
			}
			tx.updateAll(all)
		})
		within("a settle", 20, func(tx *tx) { tx.lock([]int64{1, 2, 3}, s.sql.lock, func(*job) {}) })
		within("a search for due rows", 20, func(tx *tx) { tx.findDue(new([]int64), "sq", timeOf(1), 10) })
		must(t, m, name, "INSERT INTO qsidecar_keys (queue, `key`, job, expires_at) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 900) "+
			"SELECT 'q', n.i, n.i, UTC_TIMESTAMP() FROM n")
		within("locking keys", 40, func(tx *tx) {
			tx.lockKeys([]jobKey{{"q", "1"}, {"q", "2"}, {"q", "new"}}, map[jobKey]*keyRow{})
		})
		within("ending keys", 10, func(tx *tx) {
			tx.endKeys([]*job{{Row: core.Row{ID: 1, Queue: "q", Key: "1"}}, {Row: core.Row{ID: 2, Queue: "q", Key: "2"}}})
		})
	})
}

// TestPlans checks that no claim sorts, and that each uses at least `segment` and urgency of the index.
func TestPlans(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, name := crowded(t, m)
		c, err := s.dialer.Dial(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		claimFaults := func(p backends.Policy) ([]string, error) {
			rows, err := Session{s: s, c: c}.ExplainClaim(t.Context(), p)
			return plan.Faults(rows, p.LIFO), err
		}
		check := func(what string) {
			t.Helper()
			for _, lifo := range []bool{false, true} {
				if faults, err := claimFaults(backends.Policy{Queue: "q", LIFO: lifo}); err != nil || len(faults) > 0 {
					t.Errorf("%s, newest first %v: %v, %v", what, lifo, faults, err)
				}
			}
		}
		check("at first")
		learn(t, s, cursor.Spot{Urgency: -2, Position: 1}, cursor.Spot{Urgency: 0, Position: 1})
		check("with cursors")
		must(t, m, name, "ANALYZE TABLE qsidecar_jobs")
		check("with true statistics")
		must(t, m, name, "ALTER TABLE qsidecar_jobs DROP INDEX qsidecar_segments, ADD INDEX qsidecar_segments (segment, id)")
		if faults, err := claimFaults(backends.Policy{Queue: "q"}); err != nil || !strings.Contains(fmt.Sprint(faults), "filesort") {
			t.Errorf("with another index: %v, %v; want a filesort", faults, err)
		}
	})
}

// TestPlansBesideDeadEntries checks that claims and scans for waiting workers use ranges of the index if the server counts no rows,
// but another session's snapshot keeps the entries of many jobs that are gone. Otherwise each would walk over all of them.
func TestPlansBesideDeadEntries(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		join(t, s, 1)
		hold(t, m, name)
		for n := range 4 {
			fillBy(t, s, 1000, 1000)
			write(t, s, backends.Ack{Leases: leasesOf(claimJobs(t, s, 1, 1000, uint64(1+1000*n)))})
		}
		must(t, m, name, "ANALYZE TABLE qsidecar_jobs")
		c, err := s.dialer.Dial(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		rows, err := Session{s: s, c: c}.ExplainClaim(t.Context(), backends.Policy{Queue: "q"})
		if err != nil || len(rows) != 2 {
			t.Fatal(rows, err)
		}
		position := s.Cursors.Segments("q", time.Now(), false)[0].To
		explained := func(sql string, args ...any) {
			more, err := Session{s: s, c: c}.Rows(t.Context(), explain+sql, args...)
			if err != nil {
				t.Fatal(err)
			}
			rows = append(rows, more...)
		}
		where := session.Part{SQL: table.Within([]cursor.Segment{{From: position, To: cursor.End}})}
		explained(s.sql.claims.Probe, "rq", "rq", where)
		explained(s.sql.dueReady, "q", "rq", "rq", where)
		(&tx{s: s}).queryFirstDue(core.DueQuery{Sidecar: 1, Watched: true, Waiting: []string{"q"}, DueFrom: time.Now()}, explained)
		for _, cells := range rows {
			row := ""
			for _, c := range cells {
				row += c.String + " | "
			}
			if strings.Contains(row, "qsidecar_segments") && (!strings.Contains(row, " range ") || m.Kind == testserver.MySQL97 && strings.Contains(row, "index condition")) {
				t.Errorf("not a range of the index whose end the server notices: %s", row)
			}
		}
	})
}

// TestPlanOfTheNewest checks that a list of the newest dead jobs doesn't sort, and reads only a part of the index, at its
// start and later.
func TestPlanOfTheNewest(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, name := crowded(t, m)
		c, err := s.dialer.Dial(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		check := func(what string) {
			t.Helper()
			later := int64(1) << 60
			for _, from := range []listPlace{listStart, {sortKey: &later, id: 500}} {
				query, args := s.sql.peekNewest, []any{table.StateSegment(backends.StateDead, "q"), from.preceding(), 10}
				rows, err := Session{s: s, c: c}.Rows(t.Context(), explain+query, args...)
				if faults := plan.Faults(rows, true); err != nil || len(faults) > 0 {
					t.Errorf("%s, from %+v: %v, %v", what, from, faults, err)
				}
				if n := reads(t, s, func(tx *tx) { tx.Each(func(*session.Result) {}, query, args...) }); n > 20 {
					t.Errorf("%s, from %+v: 10 of the newest jobs read %d rows", what, from, n)
				}
			}
		}
		check("at first")
		must(t, m, name, "ANALYZE TABLE qsidecar_jobs")
		check("with true statistics")
	})
}

// TestCostOfManyQueues checks that what a claim of many queues sends grows with their number, and not
// faster.
func TestCostOfManyQueues(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, _ := crowded(t, m)
		cost := func(n int) int64 {
			return grown(t, s, "Bytes_received", func(tx *tx) {
				b := claimOf(1, 1, 1)
				queue := b.Claims[0].Queues[0]
				b.Claims[0].Queues = nil
				for i := range n {
					queue.Queue = fmt.Sprintf("none%d", i)
					b.Claims[0].Queues = append(b.Claims[0].Queues, queue)
				}
				k := s.NewCommit(b, backends.TxHooks{})
				tx.o, tx.ctx = k.Options(), t.Context()
				if err := k.Run(t.Context(), tx); err != nil {
					t.Error(err)
				}
			})
		}
		if few, many := cost(30), cost(300); many > 15*few {
			t.Errorf("a claim of 300 empty queues sends %d bytes, one of 30 sends %d", many, few)
		}
	})
}
