package mysql

import (
	"database/sql"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// passed opens a database with n jobs of which the first half was claimed, after
// somebody did something in a transaction that is still open.
func passed(t *testing.T, m *testserver.MySQL, n int, before ...string) (*Store, *sql.Conn) {
	t.Helper()
	name := m.Database(t)
	s := open(t, Options{URL: m.URL(name)})
	join(t, s, 1)
	c := connect(t, m, name)
	if len(before) > 0 && before[0] == "lock" {
		fillBy(t, s, n, 1000)
		runSQL(t, c, "START TRANSACTION", "SELECT id FROM qsidecar_jobs ORDER BY id LIMIT 1 FOR UPDATE")
	} else {
		runSQL(t, c, append([]string{"START TRANSACTION"}, before...)...)
		fillBy(t, s, n, 1000)
	}
	took := 0
	for number := uint64(1); took < n/2; number += 1000 {
		took += len(take(t, s, 1, min(1000, n/2-took), number))
	}
	return s, c
}

const late = `INSERT INTO qsidecar_jobs (queue, payload) VALUES ('q', 'late')`

func isLate(j backends.Job) bool { return string(j.Payload) == "late" }

// claimUntil claims one job at a time until the wanted one comes. A new job replaces each
// that it claims, so the backlog does not end and each claim is full.
func claimUntil(t *testing.T, s *Store, want func(backends.Job) bool) {
	t.Helper()
	n := uint64(1 << 32)
	testwait.Until(t, "full claims come to the job that they passed", func() bool {
		n++
		jobs := take(t, s, 1, 1, n)
		if len(jobs) == 0 {
			t.Fatal("the backlog ran out")
		}
		fillBy(t, s, 1, 1)
		return want(jobs[0])
	})
}

func TestCommittedLate(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, c := passed(t, m, 600, late)
		runSQL(t, c, "COMMIT")
		claimUntil(t, s, isLate)
	})
}

// TestCommittedLateAndClaimedShort: a claim that comes back short has looked
// everywhere.
func TestCommittedLateAndClaimedShort(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, c := passed(t, m, 400, late)
		take(t, s, 1, 1000, 1<<20) // nothing is left
		runSQL(t, c, "COMMIT")
		if jobs := take(t, s, 1, 10, 1<<21); len(jobs) != 1 || !isLate(jobs[0]) {
			t.Fatalf("given %v, want the late one at once", jobs)
		}
	})
}

func TestLockedAndLetGo(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		if m.Kind == testserver.MariaDB105 {
			return // it cannot leave a locked row alone: claims wait for it
		}
		s, c := passed(t, m, 600, "lock")
		first := int64(0)
		if err := c.QueryRowContext(t.Context(), "SELECT MIN(id) FROM qsidecar_jobs WHERE state = 'ready'").Scan(&first); err != nil {
			t.Fatal(err)
		}
		runSQL(t, c, "ROLLBACK")
		claimUntil(t, s, func(j backends.Job) bool { return j.ID == core.ID(first) })
	})
}

// TestGivenBackByAnother: the other sidecar's count of give-backs is noticed.
func TestGivenBackByAnother(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, _ := passed(t, m, 400)
		j := take(t, s, 1, 1, 1<<20)
		other := open(t, Options{URL: s.o.URL})
		take(t, s, 1, 10, 1<<21)
		write(t, other, backends.Release{Leases: leasesOf(j), Uncounted: true})
		fullLookIsDue(t, s)
		n := 0
		claimUntil(t, s, func(got backends.Job) bool { n++; return got.ID == j[0].ID })
		if n > 2 { // one claim notices the count, the next one looks
			t.Errorf("it came as the %dth", n)
		}
	})
}

// fullLookIsDue waits until the next claim looks at everything from what it takes for
// the low on: that it does must not pass for a look at everything.
func fullLookIsDue(t *testing.T, s *Store) {
	t.Helper()
	testwait.Until(t, "a full look is due", func() bool { _, near := s.Cursors.Near("q", time.Now()); return !near })
}

// TestLowIsProven: what lies behind is not looked at for ever, and not before it
// is certain that nothing comes up there.
func TestLowIsProven(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, c := passed(t, m, 600, late)
		position := int64(0)
		if err := c.QueryRowContext(t.Context(), "SELECT MIN(position) FROM qsidecar_jobs").Scan(&position); err != nil {
			t.Fatal(err)
		}
		low := func(n uint64) int64 {
			take(t, s, 1, 1, n)
			if lows := s.Cursors.Lows("q"); len(lows) > 0 {
				return lows[0].Position
			}
			return 0
		}
		n := uint64(1 << 40)
		var proof cursor.Proof
		testwait.Until(t, "a proof is due", func() (due bool) {
			n++
			low(n)
			fillBy(t, s, 1, 1)
			proof, due = s.Cursors.ToProve("q")
			return due
		})
		if err := s.proveNow(t.Context(), proof); !isCode(err, codeNoWait, codeLockWait) {
			t.Errorf("a proof beside an open transaction ended with %v, want that a row is locked", err)
		}
		if at := low(1 << 41); at >= position {
			t.Fatalf("low is %d, and the transaction that has a job at %d is open", at, position)
		}
		runSQL(t, c, "COMMIT")
		claimUntil(t, s, isLate)
		n = 1 << 42
		testwait.Until(t, "what was taken is proven to be over", func() bool {
			n++
			fillBy(t, s, 1, 1)
			return low(n) > position
		})
	})
}

// somethingIsProven claims until the floor of "q" is above 0.
func somethingIsProven(t *testing.T, s *Store) {
	t.Helper()
	number := uint64(1 << 41)
	testwait.Until(t, "something is proven", func() bool {
		number++
		take(t, s, 1, 1, number)
		fillBy(t, s, 1, 1)
		lows := s.Cursors.Lows("q")
		return len(lows) > 0 && lows[0].Position > 0
	})
}

// belowTheFloor is a row that comes into the index later than its position says: its
// statement was held up in between, or it is from a peer whose clock is behind.
const belowTheFloor = "INSERT INTO qsidecar_jobs (queue, payload, position) VALUES ('q', 'late', 1000)"

// TestARowComesBelowTheFloor: the server gives no proof that this can't happen, so claims
// look below the floor now and then.
func TestARowComesBelowTheFloor(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, c := passed(t, m, 300)
		somethingIsProven(t, s)
		runSQL(t, c, "ROLLBACK", belowTheFloor)
		claimUntil(t, s, isLate)
	})
}

// TestARowComesBelowTheFloorOfAnIdleQueue: the looks of a sidecar whose workers wait
// find it, and so does the claim that follows.
func TestARowComesBelowTheFloorOfAnIdleQueue(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, c := passed(t, m, 300)
		somethingIsProven(t, s)
		n := uint64(1 << 42)
		for len(take(t, s, 1, 100, n)) > 0 {
			n += 100
		}
		runSQL(t, c, "ROLLBACK", belowTheFloor)
		testwait.Until(t, "a look and a claim find the job", func() bool {
			r, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10, Waiting: []string{"q"}})
			if err != nil {
				t.Fatal(err)
			}
			return len(r.Ready) > 0 && len(take(t, s, 1, 1, 1<<43)) > 0
		})
	})
}

// TestTheClockIsSetBack: positions that were passed are given again.
func TestTheClockIsSetBack(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, c := passed(t, m, 300)
		somethingIsProven(t, s)
		s.clocks.latest += int64(time.Minute / time.Microsecond) // as if the server's clock had been there
		runSQL(t, c, "ROLLBACK", "INSERT INTO qsidecar_jobs (queue, payload, position) VALUES ('q', 'late', 1000)")
		fullLookIsDue(t, s)
		n := 0
		claimUntil(t, s, func(j backends.Job) bool { n++; return isLate(j) })
		if n > 2 {
			t.Errorf("it came as the %dth", n)
		}
	})
}
