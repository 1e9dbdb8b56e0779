package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// begun returns a transaction of another program that has run sql.
func begun(t *testing.T, url string, sql ...string) pgx.Tx {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sql {
		if _, err := tx.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	return tx
}

// backlog is more jobs than a claim can scan unnoticed, and more than a proof needs.
const backlog = 4000

// passed opens a database with n jobs, after another program ran sql in a transaction that
// is still open. The first half of the jobs was claimed.
func passed(t *testing.T, p *testserver.Postgres, n int, sql ...string) (*Store, pgx.Tx) {
	t.Helper()
	s := open(t, Options{URL: filled(t, p)})
	beat(t, s, 1)
	if len(sql) > 0 && sql[0] == "lock" {
		fill(t, s, n)
		sql = []string{"SELECT 1 FROM qsidecar.qsidecar_jobs ORDER BY id LIMIT 1 FOR UPDATE"}
	}
	tx := begun(t, s.o.URL, sql...)
	if left := n - len(peek(t, s, n)); left > 0 {
		fill(t, s, left)
	}
	take(t, s, 1, n/2, 1)
	return s, tx
}

// ages puts the clock of the cursors forward, so that the next claim scans everything from the lows on. The cursors
// aren't so old then that claims start again from nothing.
func ages(s *Store) {
	s.LocalTime = func() time.Time { return time.Now().Add(time.Minute) }
}

func peek(t *testing.T, s *Store, n int) []backends.View {
	t.Helper()
	v, err := s.Peek(t.Context(), backends.Peek{Queue: "q", Max: n})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// claimsSoon claims one job at a time, as with an endless backlog. It fails unless
// want accepts one of the next few jobs.
func claimsSoon(t *testing.T, s *Store, want func(backends.Job) bool) {
	t.Helper()
	const few = 2 // one claim notices that it has to scan, the next one scans
	for n := range uint64(few) {
		jobs := take(t, s, 1, 1, 1<<32+n)
		if len(jobs) == 0 {
			t.Fatal("the backlog ran out")
		}
		if want(jobs[0]) {
			return
		}
	}
	t.Fatalf("the job is not among the next %d", few)
}

const late = `INSERT INTO qsidecar.qsidecar_jobs (queue, payload) VALUES ('q', 'late')`

func isLate(j backends.Job) bool { return string(j.Payload) == "late" }

func TestCommittedLate(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s, tx := passed(t, p, backlog, late)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		ages(s)
		claimsSoon(t, s, isLate)
	})
}

func TestCommittedLateAndClaimedShort(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s, tx := passed(t, p, 2000, late)
		take(t, s, 1, 2000, 1<<20) // no job is left
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if jobs := take(t, s, 1, 10, 1<<21); len(jobs) != 1 || !isLate(jobs[0]) {
			t.Fatalf("given %v, want the late one at once", jobs)
		}
	})
}

// TestCommittedAfterALaterXid: the transaction that inserts a job has a higher xid than
// the one whose job is claimed, although its job has a smaller position.
func TestCommittedAfterALaterXid(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		beat(t, s, 1)
		early := begun(t, s.o.URL, "SELECT pg_current_xact_id(), count(qsidecar.qsidecar_next()) FROM generate_series(1, 2000)") // more than a proof needs
		tx := begun(t, s.o.URL, late)
		if _, err := early.Exec(t.Context(), strings.Replace(late, "'late'", "'early'", 1)); err != nil {
			t.Fatal(err)
		}
		if err := early.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := range uint64(5) { // the number of claims that prove and move a low
			if jobs := take(t, s, 1, 1, 1<<32+n); len(jobs) != 1 || isLate(jobs[0]) {
				t.Fatalf("given %v, want one that is committed", jobs)
			}
			fill(t, s, 1)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		jobs := take(t, s, 1, 10, 1<<33) // it returns fewer jobs than asked, so it scans everything from the low on
		if !slices.ContainsFunc(jobs, isLate) {
			t.Fatalf("given %v with the lows %v, want the late job with them", jobs, s.Cursors.Lows("q"))
		}
	})
}

// TestCommittedAfterTheClaimsXid: the transaction of a claim gets its xid first. Then another transaction inserts a job and stays open,
// and a third one inserts the jobs that the claim takes. So the claim's own xid proves nothing about the second transaction.
func TestCommittedAfterTheClaimsXid(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		beat(t, s, 1)
		var tx pgx.Tx
		r, err := s.CommitWith(t.Context(), claimBatch(1, 1000, 1), backends.TxHooks{Before: func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
			if err := sql.Do(ctx, &backends.Statement{Text: "SELECT pg_catalog.pg_current_xact_id()::text", Row: func([][]byte) error { return nil }}); err != nil {
				return err
			}
			if tx == nil {
				tx = begun(t, s.o.URL, late)
				must(t, s.o.URL, "INSERT INTO qsidecar.qsidecar_jobs (queue, payload) SELECT 'q', 'p' FROM generate_series(1, 2000)")
			}
			return nil
		}})
		if err != nil || len(r.Claims[0].Jobs) != 1000 {
			t.Fatalf("claimed %d jobs: %v", len(r.Claims[0].Jobs), err)
		}
		lateIsClaimed(t, s, tx)
	})
}

// TestPositionDrawnLongBefore: a transaction draws a position, which writes nothing, and inserts the row after claims have passed it.
func TestPositionDrawnLongBefore(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		beat(t, s, 1)
		fill(t, s, 1) // the first number of the sequence is logged, which writes
		tx := begun(t, s.o.URL)
		var position int64
		if err := tx.QueryRow(t.Context(), "SELECT qsidecar.qsidecar_next()").Scan(&position); err != nil {
			t.Fatal(err)
		}
		fill(t, s, 2000)
		take(t, s, 1, 1000, 1)
		lateIsClaimed(t, s, tx, fmt.Sprintf("INSERT INTO qsidecar.qsidecar_jobs (queue, payload, position) VALUES ('q', 'late', %d)", position))
	})
}

// lateIsClaimed claims as often as it takes to prove something, lets tx insert and commit its job, and claims the rest.
func lateIsClaimed(t *testing.T, s *Store, tx pgx.Tx, insert ...string) {
	t.Helper()
	for n := range uint64(5) {
		take(t, s, 1, 1, 1<<32+n)
		fill(t, s, 1)
	}
	for _, sql := range insert {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if jobs := take(t, s, 1, 2000, 1<<33); !slices.ContainsFunc(jobs, isLate) {
		t.Fatalf("%d jobs were left, with the lows %v, and the late one is not among them", len(jobs), s.Cursors.Lows("q"))
	}
}

func TestLockedAndLetGo(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s, tx := passed(t, p, backlog, "lock")
		first := peek(t, s, 1)[0].ID
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		ages(s)
		claimsSoon(t, s, func(j backends.Job) bool { return j.ID == first })
	})
}

func TestGivenBackByAnother(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		other := open(t, Options{URL: s.o.URL})
		beat(t, s, 1)
		fill(t, s, backlog)
		j := take(t, other, 1, 1, 1)[0]
		take(t, s, 1, backlog/2, 100)
		if _, err := other.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{
			backends.Release{Leases: []backends.Lease{{Job: j.ID, Token: j.Token}}, Uncounted: true}}}); err != nil {
			t.Fatal(err)
		}
		claimsSoon(t, s, func(got backends.Job) bool { return got.ID == j.ID })
	})
}

// TestLowIsProven: claims do not scan the jobs behind the low indefinitely.
func TestLowIsProven(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s, tx := passed(t, p, backlog, late)
		low := func() int64 {
			return s.Cursors.Lows("q")[0].Position
		}
		for i := range 5 {
			take(t, s, 1, 100, uint64(i+1)<<32)
		}
		if n := low(); n != 0 {
			t.Fatalf("low is %d, and a transaction that may bring a job below it is open", n)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		ages(s)
		claimsSoon(t, s, isLate)
		n := uint64(1 << 40) // transactions of other tests must end first
		testwait.Until(t, "low moves on", func() bool {
			if low() >= backlog/2 {
				return true
			}
			n += 100
			r, err := s.Commit(t.Context(), claimBatch(1, 1, n))
			if err != nil || len(r.Claims[0].Jobs) == 0 {
				t.Fatalf("low is still %d: %v", low(), err)
			}
			return false
		})
	})
}

// TestLockedJobStopsTheLow: another program has a ready job locked, in a transaction that owns no position, so that proofs don't wait
// for its end. The low comes to the job and no further.
func TestLockedJobStopsTheLow(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		later := time.Duration(0) // each claim comes long after the previous one
		s.LocalTime = func() time.Time { return time.Now().Add(later) }
		beat(t, s, 1)
		fill(t, s, backlog)
		tx := begun(t, s.o.URL)
		var id string
		var position int64
		if err := tx.QueryRow(t.Context(), "SELECT id::text, position FROM qsidecar.qsidecar_jobs WHERE id = (SELECT min(id) + 1000 FROM qsidecar.qsidecar_jobs) FOR UPDATE").Scan(&id, &position); err != nil {
			t.Fatal(err)
		}
		n := uint64(1)
		testwait.Until(t, "the low comes to the locked job", func() bool {
			later += 2 * time.Second
			n += 1000
			take(t, s, 1, 200, n)
			fill(t, s, 200)
			low := s.Cursors.Lows("q")[0].Position
			if low >= position {
				t.Fatalf("the low is %d, and a job at %d is ready", low, position)
			}
			return low == position-1
		})
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if jobs := take(t, s, 1, 2*backlog, 1<<33); !slices.ContainsFunc(jobs, func(j backends.Job) bool { return j.ID == id }) {
			t.Errorf("the job is not among the %d that were left", len(jobs))
		}
	})
}

// TestLongWriterDoesNotStopTheLow: long-running write transactions that own no position do
// not keep lows from moving. A transaction that owns a position does.
func TestLongWriterDoesNotStopTheLow(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		later := time.Duration(0) // each claim comes long after the previous one
		s.LocalTime = func() time.Time { return time.Now().Add(later) }
		beat(t, s, 1)
		fill(t, s, backlog)
		begun(t, s.o.URL, "CREATE TEMP TABLE z()")
		prepared := begun(t, s.o.URL, "SELECT pg_current_xact_id()", "PREPARE TRANSACTION 'forgotten'")
		t.Cleanup(func() {
			if _, err := prepared.Conn().Exec(context.Background(), "ROLLBACK PREPARED 'forgotten'"); err != nil {
				t.Error(err)
			}
		})
		begun(t, s.o.URL, "SELECT pg_current_xact_id(), "+s.Dialect().Fence()) // as the claim of a job with an open transaction runs it
		n := uint64(1)
		claim := func() int64 {
			later += 2 * time.Second
			n += 1000
			take(t, s, 1, 200, n)
			fill(t, s, 200)
			return s.Cursors.Lows("q")[0].Position
		}
		testwait.Until(t, "the low moves on beside them", func() bool { return claim() > backlog/8 })
		owner := begun(t, s.o.URL, late)
		position := int64(0)
		if err := owner.QueryRow(t.Context(), "SELECT position FROM qsidecar.qsidecar_jobs WHERE payload = 'late'").Scan(&position); err != nil {
			t.Fatal(err)
		}
		for range 50 { // far beyond its position
			if low := claim(); low >= position {
				t.Fatalf("the low is %d, and a transaction that has a job at %d is open", low, position)
			}
		}
		if err := owner.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "the owner's job is claimed", func() bool {
			n += 2000
			later += 20 * time.Second
			return slices.ContainsFunc(take(t, s, 1, 1000, n), isLate)
		})
		testwait.Until(t, "the low moves on beyond it", func() bool { return claim() > position })
	})
}

// TestPositionsAreGivenAgain: after a failover that lost commits, new jobs have positions
// that the cursors have passed. The test reproduces what remains of a failover: the sessions
// are gone, positions are set back, and the row of the epoch is missing.
func TestPositionsAreGivenAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		for _, way := range []string{"Direct", "ThroughAPooler"} {
			t.Run(way, func(t *testing.T) {
				direct := filled(t, p)
				url := direct
				if way == "ThroughAPooler" {
					var err error
					if url, err = poolers[p].URL(direct); err != nil {
						t.Fatal(err)
					}
				}
				s := open(t, Options{URL: url})
				beat(t, s, 1)
				fill(t, s, backlog)
				n := uint64(1)
				testwait.Until(t, "something is proven", func() bool {
					n += 1000
					take(t, s, 1, 900, n)
					fill(t, s, 1)
					lows := s.Cursors.Lows("q")
					return len(lows) > 0 && lows[0].Position >= backlog/2
				})
				for len(take(t, s, 1, 900, n+1000)) > 0 {
					n += 1000
				}
				must(t, direct, `DELETE FROM qsidecar.qsidecar_jobs; DELETE FROM qsidecar.qsidecar_epoch; SELECT setval('qsidecar.qsidecar_sequence', 1);`+late)
				if way == "Direct" {
					must(t, direct, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
				}
				testwait.Until(t, "a look and a claim find the new job", func() bool {
					r, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10, Waiting: []string{"q"}})
					if err != nil {
						t.Fatal(err)
					}
					n += 2000
					return len(r.Ready) > 0 && len(take(t, s, 1, 1, n)) > 0
				})
			})
		}
	})
}

// TestRepairedSequenceResetsCursors: a sequence was behind the ids, so jobs got positions that claims had passed. Claims find them once
// the sequence is repaired.
func TestRepairedSequenceResetsCursors(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		beat(t, s, 1)
		fill(t, s, backlog)
		n := uint64(1)
		testwait.Until(t, "something is proven", func() bool {
			n += 1000
			take(t, s, 1, 900, n)
			fill(t, s, 1)
			return s.Cursors.Lows("q")[0].Position >= backlog/2
		})
		for len(take(t, s, 1, 900, n+1000)) > 0 {
			n += 1000
		}
		must(t, s.o.URL, `DELETE FROM qsidecar.qsidecar_jobs WHERE id < 100; SELECT setval('qsidecar.qsidecar_sequence', 1);`+late)
		if !s.repairIDs(t.Context()) {
			t.Fatal("the sequence was not repaired")
		}
		if jobs := take(t, s, 1, 10, 1<<33); len(jobs) != 1 || !isLate(jobs[0]) {
			t.Errorf("given %v, want the job that has an old position", jobs)
		}
	})
}

// TestSessionOfAnOlderEpoch: a claim in a session that began before positions were given again teaches the cursors nothing.
func TestSessionOfAnOlderEpoch(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		beat(t, s, 1)
		fill(t, s, 10)
		s.enter("that of the server that took over")
		if jobs := take(t, s, 1, 5, 1); len(jobs) != 5 {
			t.Fatalf("given %v", jobs)
		}
		if lows := s.Cursors.Lows("q"); len(lows) > 0 {
			t.Errorf("the cursor is at %v", lows)
		}
	})
}
