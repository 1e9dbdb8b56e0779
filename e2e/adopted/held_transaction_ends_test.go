package adopted

import (
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// free waits until the own consumers find the row first, and releases it.
func (b *sharedTable) free(what, id string) {
	b.t.Helper()
	testwait.Until(b.t, what, func() bool {
		items := b.own("own", 1)
		if len(items) == 0 {
			return false
		}
		if _, err := b.c.ExecContext(b.t.Context(), "ROLLBACK"); err != nil {
			b.t.Fatal(err)
		}
		return items[0] == id
	})
}

// failures checks the first row's failure count.
func (b *sharedTable) failures(want string) {
	b.t.Helper()
	testwait.Until(b.t, "failures of the first row: "+want, func() bool {
		return b.db.Texts(`SELECT concat(failure_count, '') FROM worker_queue WHERE id = 1`)[0] == want
	})
}

// checkLeaseEndsOfB checks that own consumers respect the lock during the whole run, and that every kind of
// end releases it.
func checkLeaseEndsOfB(t *testing.T, h adopt.Server, a adopt.Table) {
	b := newSharedTable(a, t, h, 3)
	first := b.claim(1)[0]
	if got := b.own("own", 1); got[0] != "2" {
		t.Errorf("its own consumer takes %v while the sidecar's worker has 1", got)
	}
	b.finish("own", "2")
	if s := b.w.Stats(b.Name); s.Claimed != 1 || s.Ready != 1 || s.Done != 1 {
		t.Errorf("%+v", s)
	}
	// The worker sends bye: the attempt does not count.
	b.w.Must(kit.Msg{"op": "bye"})
	b.free("1 is free after a good-bye", first.ID)
	b.failures("0")
	// The worker closes the connection: an attempt.
	b.w = b.sc.Dial()
	b.claim(1)
	if err := b.w.Close(); err != nil {
		t.Fatal(err)
	}
	b.free("1 is free without its worker", first.ID)
	b.failures("1")
	// The connection to the database is lost, and the sidecar has not noticed it yet.
	b.w = b.sc.Dial()
	lost := b.claim(1)[0]
	if lost.Attempt != 2 {
		t.Errorf("%+v", lost)
	}
	b.endLockingConnection()
	b.free("1 is free without its connection", first.ID)
	b.w.MustFail("lease_lost", kit.Msg{"op": "nack", "lease": lost.Lease, "error": "x"})
	b.w.MustFail("lease_lost", kit.Msg{"op": "ack", "lease": lost.Lease})
	b.failures("1")
	b.w.Must(kit.Msg{"op": "hello", "events": []string{"lost"}})
	lost = b.claim(1)[0]
	b.endLockingConnection()
	if r := b.w.Next(); r.Event != "lost" || len(r.Leases) != 1 || r.Leases[0] != lost.Lease {
		t.Errorf("got %+v", r)
	}
	// The sidecar is killed. Another one that is terminated returns its jobs.
	b.claim(1)
	b.sc.Kill()
	b.free("1 is free without the sidecar", first.ID)
	b.sc.Start()
	b.w = b.sc.Dial()
	last := b.claim(1)[0]
	b.sc.Signal(syscall.SIGTERM)
	testwait.Until(t, "it drains", func() bool {
		r, err := b.w.Call(kit.Msg{"op": "claim", "queue": b.Name})
		return err == nil && r.Error != nil && r.Error.Code == "draining"
	})
	b.sc.Signal(syscall.SIGTERM) // do not wait for the worker
	if code := b.sc.WaitExit(); code != 0 {
		t.Errorf("it exits with %d", code)
	}
	b.free("1 is free after an orderly exit", first.ID)
	b.sc.Start()
	b.w = b.sc.Dial()
	b.w.MustFail("lease_lost", kit.Msg{"op": "ack", "lease": last.Lease})
	b.w.MustFail("lease_lost", kit.Msg{"op": "extend", "lease": last.Lease, "bind": true})
	b.failures("2") // the second connection that was lost in a row counts
}

// endLockingConnection makes the server end the connection that has locked a row.
func (b *sharedTable) endLockingConnection() {
	b.t.Helper()
	if !strings.HasPrefix(b.s.URL, "mysql:") {
		b.db.Texts(`SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction' AND application_name = 'qsidecar'`)
		return
	}
	testwait.Until(b.t, "a connection that holds a row is found", func() bool {
		var kind, name, status string
		if err := b.db.QueryRowContext(b.t.Context(), "SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status); err != nil {
			b.t.Fatal(err)
		}
		ours := b.db.Texts("SELECT id FROM " + testserver.MySQLSessions + " WHERE db = DATABASE()")
		for _, m := range activeTransaction.FindAllStringSubmatch(status, -1) {
			if slices.Contains(ours, m[1]) {
				b.db.Script("KILL " + m[1] + ";")
				return true
			}
		}
		return false
	})
}

// activeTransaction matches the connections with an open transaction.
var activeTransaction = regexp.MustCompile(`(?s)---TRANSACTION \d+, ACTIVE.*?thread id (\d+)`)

// checkLimitsOfB checks the limit of connections with claimed jobs. What such a job can't do is
// `unsupported`, and check reports it.
func checkLimitsOfB(t *testing.T, h adopt.Server, a adopt.Table) {
	b := newSharedTable(a, t, h, 4, ", max_transactions: 2")
	jobs := b.claim(2)
	waiter := b.sc.Dial()
	waiter.Post(kit.Msg{"op": "claim", "queue": b.Name, "wait_ms": kit.WaitMS()})
	if r := b.w.Must(kit.Msg{"op": "claim", "queue": b.Name, "max": 2}); len(r.Jobs) > 0 {
		t.Errorf("a third job with max_transactions: 2: %+v", r.Jobs)
	}
	other := b.sc.Dial()
	for _, c := range []struct {
		by   *kit.Conn
		req  kit.Msg
		what string
	}{
		{b.w, kit.Msg{"op": "claim", "queue": b.Name, "lease_ms": 1000}, "a timed lease"},
		{b.w, kit.Msg{"op": "extend", "lease": jobs[0].Lease}, "extending a lease"},
		{b.w, kit.Msg{"op": "extend", "lease": jobs[0].Lease, "lease_ms": 1000}, "extending a lease"},
		{other, kit.Msg{"op": "extend", "lease": jobs[0].Lease, "bind": true}, "extending a lease"},
		{other, kit.Msg{"op": "ack", "lease": jobs[0].Lease}, "another connection"},
		{other, kit.Msg{"op": "nack", "leases": []string{jobs[0].Lease, jobs[1].Lease}}, "another connection"},
		{b.w, kit.Msg{"op": "ack", "lease": jobs[0].Lease, "result": "x"}, `"result"`},
	} {
		r, err := c.by.Call(c.req)
		if err != nil || r.Error == nil || r.Error.Code != "unsupported" || !strings.Contains(r.Error.Message, c.what) {
			t.Errorf("%v: %+v, %v; want %s", c.req, r.Error, err, c.what)
		}
	}
	b.w.Must(kit.Msg{"op": "ack", "lease": jobs[0].Lease})
	third := waiter.Next()
	if len(third.Jobs) != 1 || third.Jobs[0].ID != "3" {
		t.Fatalf("a claim that waits for a connection gets %+v", third)
	}
	b.w.Must(kit.Msg{"op": "nack", "lease": jobs[1].Lease, "error": "no luck"})
	if got := strings.Join(b.db.Texts(`SELECT concat_ws(' ', id, CASE WHEN is_done THEN 't' ELSE 'f' END, failure_count) FROM worker_queue ORDER BY id`), ","); got != "1 t 0,2 f 1,3 f 0,4 f 0" {
		t.Errorf("the rows are %s", got)
	}
	// Another config makes the sidecar open the database again. Claimed jobs stay claimed.
	b.s.DatabaseOptions = ", max_transactions: 3"
	b.s.Sidecar("a")
	b.w.Must(kit.Msg{"op": "reload"})
	if got := b.own("own", 1); len(got) != 1 || got[0] != "2" {
		t.Errorf("its own consumer takes %v after a reload", got)
	}
	b.finish("own", "2")
	waiter.Must(kit.Msg{"op": "ack", "lease": third.Jobs[0].Lease})
	b.w.Must(kit.Msg{"op": "ack", "lease": b.claim(1)[0].Lease})
	if got := b.db.Texts(`SELECT id FROM worker_queue WHERE is_done = FALSE`); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
	found := b.sc.Check(b.s.Dir, 0, "--json").Problems(t, "info")
	facts := found["table"] + found["unsupported"]
	for _, words := range []string{"claim_mode: transaction", "lease_ms", "extending a lease", "another connection", "max_transactions"} {
		if !strings.Contains(facts, words) {
			t.Errorf("check does not report %q: %s", words, facts)
		}
	}
}
