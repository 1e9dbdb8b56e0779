package mysql

import (
	"database/sql"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// passed opens a database with n jobs whose first half was claimed, after another program changed
// something in a transaction that is still open.
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
		took += len(claimJobs(t, s, 1, min(1000, n/2-took), number))
	}
	return s, c
}

const late = `INSERT INTO qsidecar_jobs (queue, payload) VALUES ('q', 'late')`

func isLate(j backends.Job) bool { return string(j.Payload) == "late" }

// claimUntil claims one job at a time until want accepts it. A new job replaces each claimed job, so the
// backlog does not end and each claim is full.
func claimUntil(t *testing.T, s *Store, want func(backends.Job) bool) {
	t.Helper()
	n := uint64(1 << 32)
	testwait.Until(t, "full claims come to the job that they passed", func() bool {
		n++
		jobs := claimJobs(t, s, 1, 1, n)
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

// TestCommittedLateAndClaimedShort checks that a claim that returns fewer jobs than it can has scanned
// everything.
func TestCommittedLateAndClaimedShort(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, c := passed(t, m, 400, late)
		claimJobs(t, s, 1, 1000, 1<<20) // nothing is left
		runSQL(t, c, "COMMIT")
		if jobs := claimJobs(t, s, 1, 10, 1<<21); len(jobs) != 1 || !isLate(jobs[0]) {
			t.Fatalf("given %v, want the late one at once", jobs)
		}
	})
}

func TestUnlockedJobIsClaimed(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		if m.Kind == testserver.MariaDB105 {
			return // the server can't skip a locked row: claims wait for it
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

// TestReturnedByAnotherSidecar checks that a sidecar notices jobs that another sidecar gives back.
func TestReturnedByAnotherSidecar(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, _ := passed(t, m, 400)
		j := claimJobs(t, s, 1, 1, 1<<20)
		other := open(t, Options{URL: s.o.URL})
		claimJobs(t, s, 1, 10, 1<<21)
		write(t, other, backends.Release{Leases: leasesOf(j), Uncounted: true})
		fullScanIsDue(t, s)
		n := 0
		claimUntil(t, s, func(got backends.Job) bool { n++; return got.ID == j[0].ID })
		if n > 2 { // one claim notices the count, the next one scans
			t.Errorf("it came as the %dth", n)
		}
	})
}

// fullScanIsDue waits until the next claim scans everything from what it assumes to be the low. The test
// must not mistake that for a scan of everything.
func fullScanIsDue(t *testing.T, s *Store) {
	t.Helper()
	testwait.Until(t, "a full scan is due", func() bool { _, near := s.Cursors.Near("q", time.Now()); return !near })
}

// TestLowIsProven checks that claims stop scanning what lies behind, but only after it is certain that no
// job can appear there.
func TestLowIsProven(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, c := passed(t, m, 600, late)
		position := int64(0)
		if err := c.QueryRowContext(t.Context(), "SELECT MIN(position) FROM qsidecar_jobs").Scan(&position); err != nil {
			t.Fatal(err)
		}
		low := func(n uint64) int64 {
			claimJobs(t, s, 1, 1, n)
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
		if err := s.finder.Prove(t.Context(), proof); !session.IsCode(err, codeNoWait, codeLockWait) {
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

// proveSomething claims until the low of "q" is above 0.
func proveSomething(t *testing.T, s *Store) {
	t.Helper()
	number := uint64(1 << 41)
	testwait.Until(t, "something is proven", func() bool {
		number++
		claimJobs(t, s, 1, 1, number)
		fillBy(t, s, 1, 1)
		lows := s.Cursors.Lows("q")
		return len(lows) > 0 && lows[0].Position > 0
	})
}

// belowTheLow stores a row that enters the index later than its position suggests: its statement was
// delayed in between, or it is from a node whose clock is behind.
const belowTheLow = "INSERT INTO qsidecar_jobs (queue, payload, position) VALUES ('q', 'late', 1000)"

// TestARowComesBelowTheLow checks that claims scan below the low from time to time, because the server
// can't guarantee that no row appears there.
func TestARowComesBelowTheLow(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		var later atomic.Int64
		s.LocalTime = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
		join(t, s, 1)
		fillBy(t, s, 300, 300)
		claimJobs(t, s, 1, 150, 1)
		proveSomething(t, s)
		must(t, m, name, belowTheLow)
		for n := range uint64(25) { // for less time than a cursor is kept, and without writes, which can start a new one
			later.Add(int64(10 * time.Second))
			if isLate(claimJobs(t, s, 1, 1, 1<<43+n)[0]) {
				return
			}
		}
		t.Error("claims passed the job for 250 s")
	})
}

// TestARowComesBelowTheLowOfAnIdleQueue checks that the scans of a sidecar with waiting workers find the
// row, and that the claim that follows finds it too.
func TestARowComesBelowTheLowOfAnIdleQueue(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, c := passed(t, m, 300)
		proveSomething(t, s)
		n := uint64(1 << 42)
		for len(claimJobs(t, s, 1, 100, n)) > 0 {
			n += 100
		}
		runSQL(t, c, "ROLLBACK", belowTheLow)
		testwait.Until(t, "a scan and a claim find the job", func() bool {
			r, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10, Waiting: []string{"q"}})
			if err != nil {
				t.Fatal(err)
			}
			return len(r.Ready) > 0 && len(claimJobs(t, s, 1, 1, 1<<43)) > 0
		})
	})
}

// TestTheClockIsSetBack checks that claims find jobs with positions that the cursor has passed and that
// are assigned again.
func TestTheClockIsSetBack(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s, c := passed(t, m, 300)
		proveSomething(t, s)
		s.finder.SawTime(serverTime(t, m) + time.Minute.Microseconds()) // as if the server's clock had been ahead
		runSQL(t, c, "ROLLBACK", "INSERT INTO qsidecar_jobs (queue, payload, position) VALUES ('q', 'late', 1000)")
		fullScanIsDue(t, s)
		n := 0
		claimUntil(t, s, func(j backends.Job) bool { n++; return isLate(j) })
		if n > 2 {
			t.Errorf("it came as the %dth", n)
		}
	})
}

// TestCursorsAfterAFailover: the address moves to a server that lost the last commits and whose clock is 2 s behind. Its jobs
// have positions that the cursors have passed. Claims find them although the backlog behind them never ends.
func TestCursorsAfterAFailover(t *testing.T) {
	ownServers(t, func(t *testing.T, kind testserver.Kind) {
		for _, c := range []struct{ clock, position string }{
			{"the same clock", "1000"},
			{"the same clock", migrate.Position + " - 2000000"},
			{"a clock that is behind", migrate.Position + " - 2000000"},
		} {
			a := newAddress(t, kind)
			s := open(t, Options{URL: a.URL(account, "x")})
			join(t, s, 1)
			fillBy(t, s, 600, 300)
			claimJobs(t, s, 1, 300, 1)
			proveSomething(t, s)
			if c.clock != "the same clock" {
				s.finder.SawTime(serverTime(t, a.old) + 2*time.Second.Microseconds())
			}
			setReadOnly(t, a.old, true)
			a.moveTo(t, a.new)
			testwait.Until(t, "the address has moved", func() bool {
				_, err := s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: 1, Timeout: time.Hour, Name: "test"})
				return err == nil && enqueue(t, s) == nil
			})
			fillBy(t, s, 100, 100)
			claimJobs(t, s, 1, 1, 1<<20)
			began := time.Now()
			must(t, a.new, database, "INSERT INTO qsidecar_jobs (queue, payload, position) VALUES ('q', 'late', "+c.position+")")
			claimUntil(t, s, isLate)
			t.Logf("%s, position %.20s…: claimed after %v", c.clock, c.position, time.Since(began).Round(time.Millisecond))
		}
	})
}
