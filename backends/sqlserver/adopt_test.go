package sqlserver

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// messages are the queue of one type of system D's messages; see package adopted's page.
func messages() mapping.Table {
	return mapping.Table{
		Name: "MsgQueue", MaxAttempts: 3, StuckAfter: time.Hour,
		Columns: map[mapping.Role][]string{
			mapping.ID: {"MsgId"}, mapping.Payload: {"Msg"}, mapping.State: {"State"}, mapping.CreatedAt: {"CreateTime"}, mapping.Worker: {"ReaderCode"},
			mapping.ClaimedAt: {"TakenTime"}, mapping.FinishedAt: {"DoneTime"}, mapping.Headers: {"SourceCode"},
		},
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "N"}, backends.StateClaimed: {Text: "A"}, backends.StateDone: {Text: "C"}, backends.StateDead: {Text: "E"}},
		Where:  map[string]mapping.Value{"MsgTypeCode": {Text: "ORD"}},
		Order:  []mapping.Ordering{{Column: "CreateTime"}},
	}
}

const (
	someMessages = `INSERT INTO dbo."MsgQueue" ("MsgTypeCode", "SourceCode", "Msg", "CreateTime") VALUES ('ORD', 'web', 'first Grüße', '2026-01-01 10:00'),
		('INV', NULL, 'other', '2026-01-01 10:00'), ('ORD', NULL, 'third', '2026-01-01 12:00'), ('ORD', NULL, 'second', '2026-01-01 11:00')`
	showMessages = `SELECT concat_ws('|', "MsgId", "State", rtrim("ReaderCode"), CASE WHEN "TakenTime" IS NULL THEN '' ELSE 't' END, CASE WHEN "DoneTime" IS NULL THEN '' ELSE 'd' END)
		FROM dbo."MsgQueue" WHERE "MsgTypeCode" = 'ORD' ORDER BY "MsgId"`
)

// TestAdoptedMessages shows jobs in system D's table from their insertion to their end.
func TestAdoptedMessages(t *testing.T) {
	t.Parallel()
	k := adopting(t, map[string]mapping.Table{"orders": messages()}, someMessages)
	if advice := k.Advice(); len(advice) > 0 {
		t.Errorf("%+v", advice)
	}
	if found, err := k.Try(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
	jobs := k.claim("orders", 2, 0)
	if len(jobs) != 2 || jobs[0].ID != "1" || string(jobs[0].Payload) != "first Grüße" || jobs[0].Headers["SourceCode"] != "web" || jobs[1].ID != "4" || jobs[1].Fence <= jobs[0].Fence {
		t.Fatalf("%+v", jobs)
	}
	// 10:00 on the owner's clock, which is two hours ahead.
	if want := time.Date(2026, 1, 1, 8, 0, 0, 0, time.UTC); !jobs[0].EnqueuedAt.Equal(want) {
		t.Errorf("enqueued at %v, want %v", jobs[0].EnqueuedAt, want)
	}
	k.shows(showMessages, "1|A|worker|t|", "3|N||", "4|A|worker|t|")
	k.shows(`SELECT CASE WHEN abs(extract(epoch FROM "TakenTime" - interval '2 hours' - (clock_timestamp() AT TIME ZONE 'UTC'))) < 1800 THEN 'now' ELSE "TakenTime"::text END
		FROM dbo."MsgQueue" WHERE "MsgId" = 1`, "now")
	k.write(backends.Ack{Leases: leasesOf(jobs[0])}, 0)
	k.write(backends.Ack{Leases: leasesOf(jobs[0])}, 1)
	k.write(backends.Extend{Leases: leasesOf(jobs[1]), Lease: time.Minute}, 0)
	k.write(backends.Extend{Leases: leasesOf(jobs[1]), Bind: me, Worker: "another one"}, 0)
	k.shows(showMessages, "1|C|worker|t|d", "3|N||", "4|A|another|t|")
	k.write(backends.Nack{Leases: leasesOf(jobs[1]), Error: "why", HasDelay: true}, 0)
	again := k.one("orders")
	if again.ID != "4" || again.Attempt != 2 || again.LastError != "why" || again.Fence <= jobs[1].Fence {
		t.Errorf("%+v", again)
	}
	k.write(backends.Nack{Leases: leasesOf(again), Error: "in an hour"}, 0)
	third := k.one("orders")
	if third.ID != "3" || len(k.claim("orders", 1, 0)) > 0 {
		t.Errorf("%+v", third)
	}
	k.write(backends.Nack{Leases: leasesOf(third), Dead: true, Error: "never"}, 0)
	k.shows(showMessages, "1|C|worker|t|d", "3|E|worker|t|d", "4|N||")
	st, err := k.Stats(t.Context(), "orders")
	if err != nil || len(st) != 1 || st[0].Ready != 0 || st[0].Scheduled != 1 || st[0].Done != 1 || st[0].Dead != 1 || st[0].Claimed != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	if v := k.peek(backends.Peek{Queue: "orders", State: backends.StateDead, Max: 5}); len(v) != 1 || v[0].ID != "3" || len(v[0].Failures) != 1 || v[0].Failures[0].Message != "never" {
		t.Errorf("%+v", v)
	}
	k.command(backends.Command{Kind: backends.Retry, Queue: "orders", All: true}, 1)
	k.command(backends.Command{Kind: backends.Pause, Queue: "orders"}, 0)
	if len(k.claim("orders", 1, 0)) > 0 {
		t.Error("a paused queue gave a job")
	}
	k.command(backends.Command{Kind: backends.Resume, Queue: "orders"}, 0)
	timed := k.claim("orders", 1, time.Hour)
	k.command(backends.Command{Kind: backends.Reclaim, Queue: "orders", IDs: []string{timed[0].ID}}, 1)
	k.write(backends.Ack{Leases: leasesOf(timed...)}, 1)
	held := k.claim("orders", 1, 0)
	k.command(backends.Command{Kind: backends.Cancel, Queue: "orders", IDs: []string{held[0].ID, "99"}}, 1)
	k.write(backends.Ack{Leases: leasesOf(held...)}, 1)
	if r := k.sweep(backends.Maintenance{Sidecar: held[0].Token.Sidecar}); len(r.Cancelled) != 1 || r.Cancelled[0] != held[0].Token {
		t.Errorf("the owner finds %+v", r.Cancelled)
	}
	k.command(backends.Command{Kind: backends.Cancel, Queue: "orders", IDs: []string{held[0].ID}}, 1)
	if v := k.peek(backends.Peek{Queue: "orders", IDs: []string{held[0].ID}}); len(v) != 1 || v[0].State != backends.StateDead || v[0].Failures[len(v[0].Failures)-1].Cause != backends.CauseCancelled {
		t.Errorf("cancelled: %+v", v)
	}
	k.command(backends.Command{Kind: backends.Retry, Queue: "orders", IDs: []string{held[0].ID}}, 1)
	k.command(backends.Command{Kind: backends.Cancel, Queue: "orders", IDs: []string{held[0].ID}}, 1)
	k.command(backends.Command{Kind: backends.Retry, Queue: "orders", All: true}, 1)
	k.command(backends.Command{Kind: backends.Purge, Queue: "orders", State: backends.StateDone}, 1)
	k.command(backends.Command{Kind: backends.Delete, Queue: "orders", IDs: []string{"3", "no number", "2"}}, 1)
	k.shows(showMessages, "4|N||")
	r := k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "orders", Payload: []byte("it's new"), Headers: map[string]string{"SourceCode": "me"}}, {Queue: "managed"}}}, 0)
	if r.Stored[0].ID != "5" || r.Stored[1].ID == "" || len(r.MadeReady) != 2 {
		t.Errorf("%+v", r)
	}
	if v := k.peek(backends.Peek{Queue: "orders", IDs: []string{"5", "6"}}); len(v) != 1 || string(v[0].Payload) != "it's new" || v[0].State != backends.StateReady {
		t.Errorf("%+v", v)
	}
	if _, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "orders", Payload: []byte{0xff}}}}}}); !backends.IsRefused(err) {
		t.Errorf("bytes that are no text: %v", err)
	}
	k.adoptedSweeps()
	if found, err := k.Examine(t.Context(), nil); err == nil {
		t.Logf("%+v", found) // the emulator has none of the server's settings that the checks read
	}
	k.isTSQL("messages")
}

// TestAdoptedConstraints shows that check finds what the table's constraints refuse of a job's life. The statements are T-SQL.
func TestAdoptedConstraints(t *testing.T) {
	t.Parallel()
	k := adopting(t, nil, someMessages)
	sets := k.e.tables["MsgQueue"]
	sets[1].Rows = append(sets[1].Rows, []driver.Value{"Mark", "int", int64(4), int64(10), int64(0), "", int64(1), int64(1), int64(0), int64(0), int64(1), int64(1), "", "(case when [State]='A' then (1) end)"})
	sets[6].Rows = append(sets[6].Rows, []driver.Value{"CK_Done", "([State]<>'C' OR [DoneTime] IS NULL)"})
	sets[7].Rows = append(sets[7].Rows,
		[]driver.Value{int64(0), "FK_Reader", int64(7), "dbo", "Readers", "ReaderCode", "Code", int64(0), int64(1)},
		[]driver.Value{int64(1), "FK_Log", int64(8), "dbo", "Log", "MsgId", "MsgId", int64(0), int64(1)})
	k.sql(`ALTER TABLE dbo."MsgQueue" ADD "Mark" int GENERATED ALWAYS AS (CASE WHEN "State" = 'A' THEN 1 END) STORED`)
	k.sql(`CREATE TABLE dbo."Readers" ("Code" char(8)); CREATE TABLE dbo."Log" ("MsgId" int)`)
	k.sql(`INSERT INTO dbo."Log" VALUES (1)`)
	for _, c := range []struct {
		onAck mapping.OnAck
		want  []string
	}{
		{mapping.Update, []string{"CK_Done", "refuses each ack", "FK_Reader", "refuses each claim"}},
		{mapping.Delete, []string{"FK_Log", "refuses a ack (of 1 of 3 sampled jobs)"}},
	} {
		m := messages()
		m.OnAck = c.onAck
		if c.onAck == mapping.Delete {
			delete(m.States, backends.StateDone)
		}
		s, err := adopted.New(t.Context(), k.engine, map[string]mapping.Table{"orders": m})
		if err != nil {
			t.Fatal(err)
		}
		found, err := s.Try(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("%+v", found)
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in %s", want, text)
			}
		}
	}
}

// TestAdoptedNames shows that a mapping names columns in any case if the database's collation
// does.
func TestAdoptedNames(t *testing.T) {
	t.Parallel()
	m := messages()
	for role, names := range m.Columns {
		m.Columns[role] = []string{strings.ToLower(names[0])}
	}
	m.Where = map[string]mapping.Value{"MSGTYPECODE": {Text: "ORD"}}
	m.Order = []mapping.Ordering{{Column: "createtime"}}
	k := adopting(t, map[string]mapping.Table{"orders": m}, someMessages)
	if advice := k.Advice(); len(advice) > 0 {
		t.Errorf("%+v", advice)
	}
	if job := k.one("orders"); job.ID != "1" || job.Headers["SourceCode"] != "web" {
		t.Errorf("%+v", job)
	}
	archive := k.e.tables["Order Lines Done"]
	for _, row := range archive[1].Rows {
		row[0] = strings.ToLower(row[0].(string))
	}
	k.sql(`INSERT INTO dbo."Order Lines" ("OrderNo", "Line", "What") VALUES ('a', 1, 'x')`)
	lines := mapping.Table{Name: "Order Lines", OnAck: mapping.Archive, Archive: "Order Lines Done", Token: &mapping.Token{Column: "PID", From: 1, To: 9},
		Columns: map[mapping.Role][]string{mapping.ID: {"orderno", "line"}, mapping.Payload: {"what"}}}
	var err error
	if k.Store, err = adopted.New(t.Context(), k.engine, map[string]mapping.Table{"lines": lines}); err != nil {
		t.Fatal(err)
	}
	k.write(backends.Ack{Leases: leasesOf(k.one("lines"))}, 0)
	k.shows(`SELECT concat_ws('|', "OrderNo", "Line", "What") FROM dbo."Order Lines Done"`, "a|1|x")
}

// TestAdoptedClaimsPastLeases shows that a claim does not wait for a lease that another
// transaction has locked, and gives the other jobs.
func TestAdoptedClaimsPastLeases(t *testing.T) {
	t.Parallel()
	k := adopting(t, map[string]mapping.Table{"orders": messages()}, someMessages)
	for _, job := range k.claim("orders", 2, 0) {
		k.write(backends.Nack{Leases: leasesOf(job), Error: "no", HasDelay: true}, 0)
	}
	tx, err := k.beside.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `UPDATE qsidecar.qsidecar_leases SET changed_at = changed_at WHERE item = '1'`); err != nil {
		t.Fatal(err)
	}
	k.e.lockTimeouts = true
	jobs := k.claim("orders", 3, 0)
	k.e.lockTimeouts = false
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(jobs) != 2 || jobs[0].ID != "4" || jobs[0].Attempt != 2 || jobs[1].ID != "3" {
		t.Errorf("%+v, want all but the job whose lease is locked", jobs)
	}
	if job := k.one("orders"); job.ID != "1" || job.Attempt != 2 || job.LastError != "no" {
		t.Errorf("%+v", job)
	}
}

// TestAdoptedClaimDelaysNoWrites shows that a claim that has to wait for another program's lock is cancelled, and
// that the writes of its commit are carried out.
func TestAdoptedClaimDelaysNoWrites(t *testing.T) {
	t.Parallel()
	k := adopting(t, map[string]mapping.Table{"orders": messages()}, someMessages)
	tx, err := k.beside.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO qsidecar.qsidecar_leases (id, queue, item, fence, attempts, losses, claim_max, backoff_ms, backoff_max_ms, changed_at)
		VALUES (7, 'orders', '1', 1, 0, 0, 3, 1, 1, 1)`); err != nil {
		t.Fatal(err)
	}
	k.e.lockTimeouts = true
	c := backends.Claim{Queues: []backends.Policy{{Queue: "orders", MaxAttempts: 3}}, Slots: []backends.Slot{k.slot(0)}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}
	r, err := k.Commit(t.Context(), backends.CommitContent{Sidecar: me, Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "managed"}}}}, Claims: []backends.Claim{c}})
	k.e.lockTimeouts = false
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Writes[0].Stored) != 1 || r.Writes[0].Err != nil || len(r.Claims[0].Jobs) != 0 || r.Claims[0].Err != nil {
		t.Errorf("%+v", r)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if job := k.one("orders"); job.ID != "1" {
		t.Errorf("%+v", job)
	}
}

// TestAdoptedIndexGone shows that a claim whose index is gone does not name one any more.
func TestAdoptedIndexGone(t *testing.T) {
	t.Parallel()
	k := adopting(t, map[string]mapping.Table{"orders": messages()}, someMessages)
	named := func() (n int) {
		k.engine.mu.Lock()
		defer k.engine.mu.Unlock()
		for text := range k.engine.seen {
			if strings.Contains(text, "WITH (INDEX ([IX_MsgQueue]), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)") {
				n++
			}
		}
		return n
	}
	if job := k.one("orders"); job.ID != "1" || named() == 0 {
		t.Errorf("%+v, by %d statements that name the index", job, named())
	}
	k.e.gone.Store(true)
	if job := k.one("orders"); job.ID != "4" {
		t.Errorf("%+v", job)
	}
	if job := k.one("orders"); job.ID != "3" {
		t.Errorf("%+v", job)
	}
}

// TestAdoptedCutsNothing shows that a value that is longer than its column is refused, and that
// an id that begins with a row's key does not find the row.
func TestAdoptedCutsNothing(t *testing.T) {
	t.Parallel()
	k := adopting(t, map[string]mapping.Table{"orders": messages()}, someMessages)
	enqueue := func(source string) error {
		_, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "orders", Headers: map[string]string{"SourceCode": source}}}}}})
		return err
	}
	for _, source := range []string{"0123456789A", "0123456789 "} {
		if err := enqueue(source); !backends.IsRefused(err) {
			t.Errorf("%q: %v", source, err)
		}
	}
	if err := enqueue("0123456789"); err != nil {
		t.Error(err)
	}
	k.shows(`SELECT "SourceCode" FROM dbo."MsgQueue" WHERE "SourceCode" LIKE '0%'`, "0123456789")
	k.command(backends.Command{Kind: backends.Delete, Queue: "orders", IDs: []string{"1 ", "1.0", "1-1", "01", "1x"}}, 0)
	k.command(backends.Command{Kind: backends.Delete, Queue: "orders", IDs: []string{"1"}}, 1)
}

// adoptedSweeps shows which jobs maintenance reaps, including those that the table's own consumers left.
func (a *adoption) adoptedSweeps() {
	a.Helper()
	a.sql(`DELETE FROM dbo."MsgQueue"; DELETE FROM qsidecar.qsidecar_leases; ALTER TABLE dbo."MsgQueue" ALTER COLUMN "MsgId" RESTART WITH 11; ` + someMessages)
	ended := a.claim("orders", 1, time.Hour)[0]
	const dead backends.Identity = 7
	a.beat(dead)
	c := backends.Claim{Queues: []backends.Policy{{Queue: "orders", MaxAttempts: 3}}, Slots: []backends.Slot{{Token: backends.Token{Sidecar: dead, Number: 1}}}}
	lost := a.commit(backends.CommitContent{Sidecar: dead, Claims: []backends.Claim{c}}).Claims[0].Jobs[0]
	if held, err := a.ClaimedBy(a.Context(), dead, "", 10); err != nil || len(held) != 1 || held[0].Lease != lost.Lease() {
		a.Errorf("%+v, %v", held, err)
	}
	if r := a.sweep(backends.Maintenance{Waiting: []string{"orders"}}); len(r.Reaped) != 0 || r.Next <= 0 || len(r.Ready) != 1 {
		a.Errorf("nothing was due: %+v", r)
	}
	a.sql(`UPDATE qsidecar.qsidecar_leases SET due_at = 1 WHERE due_at IS NOT NULL; UPDATE qsidecar.qsidecar_sidecars SET dead = 1 WHERE sidecar = 7;
		UPDATE dbo."MsgQueue" SET "State" = 'A', "ReaderCode" = 'own', "TakenTime" = clock_timestamp() AT TIME ZONE 'UTC' + interval '59 minutes' WHERE "MsgId" = 13`)
	if r := a.sweep(backends.Maintenance{}); r.Reaped[backends.CauseLeaseEnded] != 1 || r.Reaped[backends.CauseSidecarLost] != 1 || fmt.Sprint(r.MadeReady) != "[orders]" {
		a.Errorf("%+v", r)
	}
	a.shows(showMessages, "11|N||", "13|N||", "14|N||") // the last was stuck for an hour and a minute
	a.write(backends.Ack{Leases: leasesOf(ended, lost)}, 2)
	a.sql(`UPDATE dbo."MsgQueue" SET "State" = 'C' WHERE "MsgTypeCode" = 'ORD'`)
	if r := a.sweep(backends.Maintenance{Prune: true}); r.Pruned != 2 {
		a.Errorf("%+v", r)
	}
}

// TestAdoptedStrangers shows that a lease changes no row that no longer shows its claim, that it
// does not wait for rows that others have locked, and that claims pass over those.
func TestAdoptedStrangers(t *testing.T) {
	t.Parallel()
	k := adopting(t, map[string]mapping.Table{"orders": messages()}, someMessages)
	stale, mine := k.one("orders"), k.one("orders")
	k.sql(`UPDATE dbo."MsgQueue" SET "State" = 'N', "ReaderCode" = NULL WHERE "MsgId" = 1`)
	k.sql(`UPDATE dbo."MsgQueue" SET "State" = 'A', "ReaderCode" = 'WORKER' WHERE "MsgId" = 1`) // the same in the column's collation
	k.write(backends.Ack{Leases: leasesOf(stale)}, 1)
	k.shows(showMessages, "1|A|WORKER|t|", "3|N||", "4|A|worker|t|")
	k.e.lockTimeouts = true
	k.sql("BEGIN")
	k.sql(`SELECT 1 FROM dbo."MsgQueue" WHERE "MsgId" IN (3, 4) FOR UPDATE`)
	if jobs := k.claim("orders", 1, 0); len(jobs) > 0 {
		t.Errorf("%+v is locked", jobs)
	}
	var locked *backends.LockedError
	if _, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(mine)}}, WaitForLocks: true}); !errors.As(err, &locked) || backends.Retryable(err) {
		t.Errorf("%v", err)
	}
	k.sql("COMMIT")
	k.write(backends.Ack{Leases: leasesOf(mine)}, 0)
	k.sql(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'not today'; END$$;
		CREATE TRIGGER refuse BEFORE UPDATE ON dbo."MsgQueue" FOR EACH ROW WHEN (NEW."State" = 'C') EXECUTE FUNCTION refuse()`)
	if _, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(k.one("orders"))}}}); !backends.IsRefused(err) || !strings.Contains(err.Error(), "not today") {
		t.Errorf("%v", err)
	}
	k.sql("UPDATE qsidecar.qsidecar_sidecars SET dead = 1")
	c := backends.Claim{Queues: []backends.Policy{{Queue: "orders", MaxAttempts: 3}}, Slots: []backends.Slot{k.slot(0)}}
	if _, err := k.Commit(t.Context(), backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}}); !errors.Is(err, backends.ErrEvicted) {
		t.Errorf("%v", err)
	}
}

// TestQueryDoesNotWaitForLocks shows that a locked row delays a query by half a second at most
// if the database has no row versions.
func TestQueryDoesNotWaitForLocks(t *testing.T) {
	t.Parallel()
	asked := 0
	s, _ := scriptedStore(t, func(query string) ([]*answer, error) {
		if asked++; !strings.Contains(query, "SET LOCK_TIMEOUT 500;") {
			t.Errorf("asked: %s", query)
		}
		return nil, serverError(1222, "Lock request time out period exceeded.")
	})
	var locked *backends.LockedError
	if err := s.Query(t.Context(), &backends.Statement{Text: "SELECT 1 AS one"}); !errors.As(err, &locked) || asked != 1 {
		t.Errorf("%v, asked %d times", err, asked)
	}
}

// TestAdoptedKeep shows that finished rows are deleted after the queue's retention.
func TestAdoptedKeep(t *testing.T) {
	m := messages()
	m.RetainDone, m.RetainDead, m.UTC = time.Hour, 2*time.Hour, true
	k := adopting(t, map[string]mapping.Table{"orders": m}, someMessages, `INSERT INTO dbo."MsgQueue" ("MsgTypeCode", "State", "Msg", "DoneTime")
		SELECT type, state, 'x', (now() AT TIME ZONE 'UTC') - age * interval '1 minute' FROM (VALUES ('ORD', 'C', 61), ('ORD', 'C', 59), ('ORD', 'E', 121), ('ORD', 'E', 119), ('INV', 'C', 999), ('ORD', 'N', 999)) v (type, state, age)`)
	if r, err := k.Maintain(t.Context(), backends.Maintenance{Prune: true, Limit: 100}); err != nil || r.Pruned != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	k.shows(`SELECT concat_ws('|', "MsgTypeCode", "State", "DoneTime" < (now() AT TIME ZONE 'UTC') - interval '1 hour') FROM dbo."MsgQueue" WHERE "DoneTime" IS NOT NULL ORDER BY 1`,
		"INV|C|t", "ORD|C|f", "ORD|E|t", "ORD|N|t")
}
