package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// begun is a transaction of somebody else's, with what it did so far.
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

// passed opens a database with n jobs of which the first half was claimed, after
// somebody did something in a transaction that is still open.
func passed(t *testing.T, p *testserver.Postgres, n int, sql ...string) (*Store, pgx.Tx) {
	t.Helper()
	s := open(t, Options{URL: p.Database(t)})
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

func peek(t *testing.T, s *Store, n int) []backends.View {
	t.Helper()
	v, err := s.Peek(t.Context(), backends.Peek{Queue: "q", Max: n})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// claimUntil claims one job at a time until the wanted one comes, as an endless
// backlog would have it, and fails when that takes longer than a second.
func claimUntil(t *testing.T, s *Store, want func(backends.Job) bool) {
	t.Helper()
	deadline := time.Now().Add(time.Second)
	for n := uint64(1 << 32); ; n++ {
		jobs := take(t, s, 1, 1, n)
		if len(jobs) == 0 {
			t.Fatal("the backlog ran out")
		}
		if want(jobs[0]) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the job was left behind for a second of full claims")
		}
	}
}

const late = `INSERT INTO qsidecar.qsidecar_jobs (queue, payload) VALUES ('q', 'late')`

func isLate(j backends.Job) bool { return string(j.Payload) == "late" }

func TestCommittedLate(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s, tx := passed(t, p, 20_000, late)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		claimUntil(t, s, isLate)
	})
}

func TestCommittedLateAndClaimedShort(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s, tx := passed(t, p, 2000, late)
		take(t, s, 1, 2000, 1<<20) // nothing is left
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if jobs := take(t, s, 1, 10, 1<<21); len(jobs) != 1 || !isLate(jobs[0]) {
			t.Fatalf("given %v, want the late one at once", jobs)
		}
	})
}

func TestLockedAndLetGo(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s, tx := passed(t, p, 20_000, "lock")
		first := peek(t, s, 1)[0].ID
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		claimUntil(t, s, func(j backends.Job) bool { return j.ID == first })
	})
}

func TestGivenBackByAnother(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: p.Database(t)})
		other := open(t, Options{URL: s.o.URL})
		beat(t, s, 1)
		fill(t, s, 20_000)
		j := take(t, other, 1, 1, 1)[0]
		take(t, s, 1, 2000, 100)
		if _, err := other.Commit(t.Context(), backends.Batch{Writes: []backends.Write{
			backends.Release{Leases: []backends.Lease{{Job: j.ID, Token: j.Token}}, Uncharged: true}}}); err != nil {
			t.Fatal(err)
		}
		n := 0
		claimUntil(t, s, func(got backends.Job) bool { n++; return got.ID == j.ID })
		if n > 2 { // one claim notices the count, the next one looks
			t.Errorf("it came as the %dth", n)
		}
	})
}

// TestLowIsProven: what lies behind is not looked at for ever.
func TestLowIsProven(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s, tx := passed(t, p, 20_000, late)
		low := func() int64 {
			return s.cursors.Lows("q")[0].Position
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
		claimUntil(t, s, isLate)
		deadline := time.Now().Add(10 * time.Second) // other tests' transactions must end first
		for n := uint64(1 << 40); low() < 10_000; n += 100 {
			if len(take(t, s, 1, 10, n)) == 0 || time.Now().After(deadline) {
				t.Fatalf("low is still %d", low())
			}
		}
	})
}
