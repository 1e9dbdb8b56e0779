package adopted

import (
	"cmp"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
)

// sharedTable is a system's table with one own consumer, a sidecar and a worker, all in the test's
// process.
type sharedTable struct {
	adopt.Table
	t  *testing.T
	db databases.OwnersDB
	c  *sql.Conn // the own consumer's connection
	s  *kit.Site
	sc *kit.Sidecar
	w  *kit.Conn
}

// newSharedTable creates the system's table with n jobs. more is added to the database's config. It
// checks that check reports no problem.
func newSharedTable(a adopt.Table, t *testing.T, h adopt.Server, n int, more ...string) *sharedTable {
	t.Helper()
	s := kit.NewSite(t)
	s.URL, s.Queues, s.SidecarTimeout, s.DatabaseOptions = h.Database(t), "  "+a.Name+":"+a.Config, cmp.Or(a.SidecarTimeout, 20*time.Second), strings.Join(more, "")
	b := &sharedTable{Table: a, t: t, db: databases.Owners(t, s.URL)}
	b.db.Script(fmt.Sprintf(a.DDL, n))
	var err error
	if b.c, err = b.db.Conn(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.c.Close(); err != nil {
			t.Error(err)
		}
	})
	b.s, b.sc = s, s.Start("a")
	b.w = b.sc.Dial()
	output := b.sc.Check(s.Dir, 0, "--json")
	for topic, advice := range output.Problems(t, "warning") {
		if topic != "durability" && topic != "claim" && !(topic == "index" && a.Unindexed) { // these topics are about the server
			t.Errorf("check advises about %s: %s", topic, advice)
		}
	}
	if !strings.Contains(output.Stdout, "the queue "+a.Name+" lives in the table") {
		t.Errorf("check reports %s", output.Stdout)
	}
	return b
}

// own claims rows for a consumer of that name.
func (b *sharedTable) own(name string, most int) []string {
	b.t.Helper()
	items, err := adopt.OwnConsumers[b.Name].Take(b.t.Context(), b.c, name, most)
	if err != nil {
		b.t.Fatal(err)
	}
	return items
}

// finish finishes rows for the own consumer.
func (b *sharedTable) finish(name string, items ...string) {
	b.t.Helper()
	for _, item := range items {
		if err := adopt.OwnConsumers[b.Name].Finish(b.t.Context(), b.c, item, name); err != nil {
			b.t.Fatal(err)
		}
	}
}

// claim claims n rows for the sidecar's worker.
func (b *sharedTable) claim(n int) (jobs []kit.Job) {
	b.t.Helper()
	if jobs = b.w.Must(kit.Msg{"op": "claim", "queue": b.Name, "max": n, "wait_ms": kit.WaitMS()}).Jobs; len(jobs) != n {
		b.t.Fatalf("%d jobs, want %d", len(jobs), n)
	}
	return jobs
}

func itemsOf(jobs []kit.Job) (items []string) {
	for _, j := range jobs {
		items = append(items, j.ID)
	}
	return items
}

func (b *sharedTable) same(what string, got []string, want ...string) {
	b.t.Helper()
	if !slices.Equal(got, want) {
		b.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// checkOrderOfA claims rows one by one, in turns by the own SQL and through the sidecar, and checks the
// order of times, whatever the ids are.
func checkOrderOfA(t *testing.T, h adopt.Server, a adopt.Table, newest bool) {
	b := newSharedTable(a, t, h, 12)
	var want []string
	for place, id := range []int{7, 2, 12, 1, 9, 4, 11, 3, 10, 5, 8, 6} {
		at := time.Date(2026, 1, 1, 10, 0, place, 0, time.UTC).Format(time.DateTime)
		b.db.Script(fmt.Sprintf("UPDATE things SET created_at = '%s' WHERE id = %d;", at, id))
		want = append(want, strconv.Itoa(id))
	}
	if newest {
		slices.Reverse(want)
	}
	var got []string
	for n := range 4 {
		own := b.own(fmt.Sprint(adopt.Own, "-", n), 1)
		job := b.claim(1)[0]
		got = append(append(got, own...), job.ID)
		if n%2 == 0 { // a claimed row does not delay others
			b.finish("", own...)
			b.w.Must(kit.Msg{"op": "ack", "lease": job.Lease})
		}
	}
	got = append(append(got, itemsOf(b.claim(3))...), b.own("own-9", 1)...)
	b.same("in turns", got, want...)
}

// checkBatchesOfC checks that both sides claim several rows at once, oldest first, that a rejected row
// keeps its position for both, and that both count the same ready rows.
func checkBatchesOfC(t *testing.T, h adopt.Server, a adopt.Table) {
	b := newSharedTable(a, t, h, 10)
	waiting := func(what string, want int) {
		t.Helper()
		own := b.db.Texts("SELECT CAST(COUNT(*) AS CHAR) FROM queue_test WHERE transaction_unique IS NULL")
		b.same(what+": the own count", own, strconv.Itoa(want))
		if stat := b.w.Stats(b.Name); stat.Ready+stat.Scheduled+stat.Dead != want {
			t.Errorf("%s: the sidecar counts %+v, want %d ready", what, stat, want)
		}
	}
	waiting("at first", 10)
	first := b.claim(4)
	b.same("the first claim", itemsOf(first), "1", "2", "3", "4")
	for i, j := range first {
		if want := fmt.Sprintf(`{"n": %d}`, i); j.Payload != want {
			t.Errorf("the payload is %q, want %q", j.Payload, want)
		}
	}
	marks := b.db.Texts("SELECT CAST(transaction_unique AS CHAR) FROM queue_test WHERE id <= 4 GROUP BY 1")
	if n, err := strconv.Atoi(strings.Join(marks, "")); err != nil || n < 16_000_000 || n > 16_777_215 {
		t.Errorf("the rows of one claim show %v", marks)
	}
	own := b.own("own-1", 3)
	b.same("the own consumer", own, "5", "6", "7")
	waiting("after two takes", 3)
	b.w.Must(kit.Msg{"op": "nack", "lease": first[0].Lease, "error": "no luck", "delay_ms": 0})
	if _, err := b.c.ExecContext(t.Context(), "UPDATE queue_test SET transaction_unique=NULL WHERE id=?", own[0]); err != nil { // the own consumer's reject
		t.Fatal(err)
	}
	waiting("after two rejects", 5)
	later := b.claim(1)[0]
	b.w.Must(kit.Msg{"op": "nack", "lease": later.Lease, "error": "not yet"}) // own consumers ignore the back-off
	waiting("with a back-off", 5)
	b.same("what was rejected", b.own("own-2", 1), "1")
	second := b.claim(2)
	b.same("what was rejected", itemsOf(second), "5", "8")
	b.w.Must(kit.Msg{"op": "ack", "leases": []string{first[1].Lease, first[2].Lease, first[3].Lease, second[0].Lease}})
	b.finish("own-1", append(own[1:], "1")...)
	b.same("what is left", b.db.Texts("SELECT CONCAT(id, IF(transaction_unique IS NULL, '', ' taken')) FROM queue_test ORDER BY id"), "8 taken", "9", "10")
	b.w.Must(kit.Msg{"op": "nack", "lease": second[1].Lease, "error": "never", "dead": true})
	waiting("with a dead one", 3) // the table has no column for that
	if stat := b.w.Stats(b.Name); stat.Dead != 1 {
		t.Errorf("the sidecar counts %+v", stat)
	}
	id := b.w.Must(kit.Msg{"op": "enqueue", "queue": b.Name, "payload": `{"n": "new"}`}).Job.ID
	waiting("after an enqueue", 4)
	b.same("the sidecar", itemsOf(b.claim(1)), "9")
	b.same("its own consumers take a dead one", b.own("own-3", 5), "8", "10", id)
	b.same("the payload", b.db.Texts("SELECT payload FROM queue_test WHERE id=?", id), `{"n": "new"}`)
}

// checkTypesOfD checks that a queue only has rows of its type, and state E for dead jobs.
func checkTypesOfD(t *testing.T, h adopt.Server, d adopt.Table) {
	d.Config += "  invoices:" + strings.Replace(d.Config, "MsgTypeCode: ORD", "MsgTypeCode: INV", 1)
	b := newSharedTable(d, t, h, 2)
	b.same("the type's rows", itemsOf(b.claim(2)), b.db.Texts("SELECT CAST(MsgId AS CHAR) FROM MsgQueue WHERE MsgTypeCode = 'ORD' ORDER BY CreateTime, MsgId")...)
	if more := b.w.Must(kit.Msg{"op": "claim", "queue": d.Name}).Jobs; len(more) > 0 {
		t.Errorf("of other types: %+v", more)
	}
	id := b.w.Must(kit.Msg{"op": "enqueue", "queue": "invoices", "payload": "of this type"}).Job.ID
	shows := func(what string, want string) {
		t.Helper()
		b.same(what, b.db.Texts("SELECT CONCAT_WS(' ', MsgTypeCode, State, ReaderCode, IF(TakenTime IS NULL, '', 'taken'), IF(DoneTime >= CreateTime, 'finished', '')) FROM MsgQueue WHERE MsgId = ?", id), want)
	}
	shows("an enqueue", "INV N  ")
	jobs := b.w.Must(kit.Msg{"op": "claim", "queue": "invoices", "max": 5}).Jobs
	if len(jobs) != 3 || jobs[2].ID != id || jobs[2].Payload != "of this type" {
		t.Fatalf("%+v", jobs)
	}
	shows("a claim", "INV A qsidecar taken ")
	b.w.Must(kit.Msg{"op": "nack", "lease": jobs[2].Lease, "error": "no such customer", "dead": true})
	shows("a dead job", "INV E qsidecar taken finished")
	if dead := b.w.Must(kit.Msg{"op": "peek", "queue": "invoices", "state": "dead"}).Jobs; len(dead) != 1 || dead[0].ID != id || dead[0].Errors[0].Message != "no such customer" {
		t.Errorf("the dead: %+v", dead)
	}
	if got, other := b.w.Stats("invoices"), b.w.Stats(d.Name); got.Dead != 1 || got.Claimed != 2 || other.Dead != 0 || other.Claimed != 2 {
		t.Errorf("the counts: %+v, %+v", got, other)
	}
	b.w.Must(kit.Msg{"op": "retry", "queue": "invoices", "ids": []string{id}})
	shows("a retry", "INV N  ")
}

// plainReaderOfD checks the published SQL, which reads a row without a lock and then claims it,
// even if another consumer has claimed it in between. The sidecar that had the row finds out.
func plainReaderOfD(t *testing.T, h adopt.Server, d adopt.Table) {
	d.Config = strings.Replace(d.Config, "stuck_after: 20s", "", 1)
	b := newSharedTable(d, t, h, 2)
	row := func(item string) []string {
		return b.db.Texts("SELECT CONCAT_WS(' ', State, ReaderCode, TakenTime, DoneTime) FROM MsgQueue WHERE MsgId = ?", item)
	}
	for _, verb := range []kit.Msg{{"op": "ack"}, {"op": "nack", "error": "x"}} {
		read := b.db.Texts("SELECT CAST(MsgId AS CHAR) FROM MsgQueue WHERE MsgTypeCode = 'ORD' AND State = 'N' ORDER BY CreateTime, MsgId LIMIT 1")[0]
		job := b.claim(1)[0]
		b.same("both have", []string{job.ID}, read)
		b.db.Script("UPDATE MsgQueue SET State = 'A', ReaderCode = 'own', TakenTime = NOW(3) WHERE MsgId = " + read + ";")
		before := row(read)
		b.w.MustFail("lease_lost", kit.Msg{"op": verb["op"], "error": verb["error"], "lease": job.Lease})
		b.same("the row", row(read), before...)
		b.finish("own", read)
	}
}
