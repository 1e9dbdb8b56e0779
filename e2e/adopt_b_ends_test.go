package e2e

import (
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// free waits until its own consumers find the row first, and leaves it.
func (b *beside) free(what, id string) {
	b.t.Helper()
	eventually(b.t, patience, what, func() bool {
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

// failures is how often the first row failed.
func (b *beside) failures(want string) {
	b.t.Helper()
	eventually(b.t, patience, "failures of the first row: "+want, func() bool {
		return b.db.texts(`SELECT concat(failure_count, '') FROM worker_queue WHERE id = 1`)[0] == want
	})
}

// endsOfB: the lock is seen by its own consumers for the whole run, and each kind of end
// releases it.
func endsOfB(t *testing.T, h tableServer, a adoption) {
	b := a.besideOwn(t, h, 3)
	first := b.claim(1)[0]
	if got := b.own("own", 1); got[0] != "2" {
		t.Errorf("its own consumer takes %v while the sidecar's worker has 1", got)
	}
	b.finish("own", "2")
	if s := b.w.stat(b.name); s.Claimed != 1 || s.Ready != 1 || s.Done != 1 {
		t.Errorf("%+v", s)
	}
	// The worker says good-bye: nothing happened.
	b.w.must(msg{"op": "bye"})
	b.free("1 is free after a good-bye", first.ID)
	b.failures("0")
	// The worker goes without a word: an attempt.
	b.w = b.sc.dial()
	b.claim(1)
	if err := b.w.Close(); err != nil {
		t.Fatal(err)
	}
	b.free("1 is free without its worker", first.ID)
	b.failures("1")
	// The connection to the database is lost, and nobody knows it yet.
	b.w = b.sc.dial()
	lost := b.claim(1)[0]
	if lost.Attempt != 2 {
		t.Errorf("%+v", lost)
	}
	b.cutHeld()
	b.free("1 is free without its connection", first.ID)
	b.w.refused("lease_lost", msg{"op": "nack", "lease": lost.Lease, "error": "x"})
	b.w.refused("lease_lost", msg{"op": "ack", "lease": lost.Lease})
	b.failures("1")
	b.w.must(msg{"op": "hello", "events": []string{"lost"}})
	lost = b.claim(1)[0]
	b.cutHeld()
	if r := b.w.next(); r.Event != "lost" || len(r.Leases) != 1 || r.Leases[0] != lost.Lease {
		t.Errorf("told %+v", r)
	}
	// The sidecar dies; another one, started in good order, gives back what it has.
	b.claim(1)
	b.sc.kill()
	b.free("1 is free without the sidecar", first.ID)
	b.sc.start()
	b.w = b.sc.dial()
	last := b.claim(1)[0]
	b.sc.signal(syscall.SIGTERM)
	eventually(t, patience, "it drains", func() bool {
		r, err := b.w.call(msg{"op": "claim", "queue": b.name})
		return err == nil && r.Error != nil && r.Error.Code == "draining"
	})
	b.sc.signal(syscall.SIGTERM) // do not wait for the worker
	if code := b.sc.exit(patience); code != 0 {
		t.Errorf("it exits with %d", code)
	}
	b.free("1 is free after an orderly exit", first.ID)
	b.sc.start()
	b.w = b.sc.dial()
	b.w.refused("lease_lost", msg{"op": "ack", "lease": last.Lease})
	b.w.refused("lease_lost", msg{"op": "extend", "lease": last.Lease, "bind": true})
	b.failures("1")
}

// cutHeld has the server end the connection that holds a row.
func (b *beside) cutHeld() {
	b.t.Helper()
	if !strings.HasPrefix(b.s.url, "mysql:") {
		b.db.texts(`SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction' AND application_name = 'qsidecar'`)
		return
	}
	eventually(b.t, patience, "a connection that holds a row is found", func() bool {
		var kind, name, status string
		if err := b.db.QueryRowContext(b.t.Context(), "SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status); err != nil {
			b.t.Fatal(err)
		}
		ours := b.db.texts("SELECT id FROM " + testserver.MySQLSessions + " WHERE db = DATABASE()")
		for _, m := range activeTransaction.FindAllStringSubmatch(status, -1) {
			if slices.Contains(ours, m[1]) {
				b.db.script("KILL " + m[1] + ";")
				return true
			}
		}
		return false
	})
}

// activeTransaction finds the connections of transactions that are open.
var activeTransaction = regexp.MustCompile(`(?s)---TRANSACTION \d+, ACTIVE.*?thread id (\d+)`)

// boundsOfB: so many connections hold jobs, and no more; what a held job cannot have is
// `unsupported`, and check says so.
func boundsOfB(t *testing.T, h tableServer, a adoption) {
	b := a.besideOwn(t, h, 4, ", max_held: 2")
	jobs := b.claim(2)
	waiter := b.sc.dial()
	waiter.post(msg{"op": "claim", "queue": b.name, "wait_ms": patience.Milliseconds()})
	if r := b.w.must(msg{"op": "claim", "queue": b.name, "max": 2}); len(r.Jobs) > 0 {
		t.Errorf("a third job with max_held: 2: %+v", r.Jobs)
	}
	other := b.sc.dial()
	for _, c := range []struct {
		by   *conn
		req  msg
		what string
	}{
		{b.w, msg{"op": "claim", "queue": b.name, "lease_ms": 1000}, "a timed lease"},
		{b.w, msg{"op": "extend", "lease": jobs[0].Lease}, "extending a lease"},
		{b.w, msg{"op": "extend", "lease": jobs[0].Lease, "lease_ms": 1000}, "extending a lease"},
		{other, msg{"op": "extend", "lease": jobs[0].Lease, "bind": true}, "extending a lease"},
		{other, msg{"op": "ack", "lease": jobs[0].Lease}, "another connection"},
		{other, msg{"op": "nack", "leases": []string{jobs[0].Lease, jobs[1].Lease}}, "another connection"},
		{b.w, msg{"op": "ack", "lease": jobs[0].Lease, "result": "x"}, `"result"`},
	} {
		r, err := c.by.call(c.req)
		if err != nil || r.Error == nil || r.Error.Code != "unsupported" || !strings.Contains(r.Error.Message, c.what) {
			t.Errorf("%v: %+v, %v; want %s", c.req, r.Error, err, c.what)
		}
	}
	b.w.must(msg{"op": "ack", "lease": jobs[0].Lease})
	third := waiter.next()
	if len(third.Jobs) != 1 || third.Jobs[0].ID != "3" {
		t.Fatalf("who waits for a connection gets %+v", third)
	}
	b.w.must(msg{"op": "nack", "lease": jobs[1].Lease, "error": "no luck"})
	if got := strings.Join(b.db.texts(`SELECT concat_ws(' ', id, CASE WHEN is_done THEN 't' ELSE 'f' END, failure_count) FROM worker_queue ORDER BY id`), ","); got != "1 t 0,2 f 1,3 f 0,4 f 0" {
		t.Errorf("the rows are %s", got)
	}
	// Another config, by which the database is opened anew: what is held stays so.
	b.s.database = ", max_held: 3"
	b.s.sidecar("a")
	b.w.must(msg{"op": "reload"})
	if got := b.own("own", 1); len(got) != 1 || got[0] != "2" {
		t.Errorf("its own consumer takes %v after a reload", got)
	}
	b.finish("own", "2")
	waiter.must(msg{"op": "ack", "lease": third.Jobs[0].Lease})
	b.w.must(msg{"op": "ack", "lease": b.claim(1)[0].Lease})
	if got := b.db.texts(`SELECT id FROM worker_queue WHERE is_done = FALSE`); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
	found := b.sc.checked(b.s.dir, 0, "--json").found(t, "fact")
	says := found["table"] + found["unsupported"]
	for _, words := range []string{"hold: transaction", "lease_ms", "extending a lease", "another connection", "max_held"} {
		if !strings.Contains(says, words) {
			t.Errorf("check does not say %q: %s", words, says)
		}
	}
}
