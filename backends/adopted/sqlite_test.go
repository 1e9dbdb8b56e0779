package adopted_test

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/sqlite"
	"github.com/qsidecar/qsidecar/backends/sqlite/diagnose"
)

// newSQLiteKit is newKit with the tables in a file.
func newSQLiteKit(t *testing.T, ddl string, tables map[string]mapping.Table) *kit {
	t.Helper()
	path := filepath.Join(t.TempDir(), "owner's.db")
	k := &kit{T: t}
	var err error
	if k.db, err = sql.Open("sqlite", path+"?_pragma=busy_timeout(5000)"); err != nil {
		t.Fatal(err)
	}
	closed(t, k.db)
	if k.conn, err = k.db.Conn(t.Context()); err != nil {
		t.Fatal(err)
	}
	closed(t, k.conn)
	k.sql(ddl)
	k.reopen = func() backends.Engine {
		engine, err := sqlite.Open(t.Context(), sqlite.Options{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		return diagnose.New(engine)
	}
	k.Store = k.reopened(tables)
	k.heartbeat(me, backends.HeartbeatJoin, sidecarTimeout)
	return k
}

const sqliteMessages = `CREATE TABLE MsgQueue (MsgId INTEGER PRIMARY KEY AUTOINCREMENT, MsgTypeCode CHAR(3) NOT NULL, State CHAR(1) NOT NULL DEFAULT 'N',
	CreateTime DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, Msg TEXT, Reader TEXT, Taken DATETIME, Done DATETIME, Tries INT NOT NULL DEFAULT 0);
	CREATE INDEX by_state ON MsgQueue (MsgTypeCode, State, CreateTime);
	INSERT INTO MsgQueue (MsgTypeCode, Msg) VALUES ('ORD', 'one'), ('INV', 'other'), ('ORD', 'two'), ('ORD', 'three');`

func sqliteMessagesTable() mapping.Table {
	return mapping.Table{
		Name: "MsgQueue", MaxAttempts: 3, StuckAfter: time.Hour,
		Columns: map[mapping.Role][]string{
			mapping.ID: {"MsgId"}, mapping.Payload: {"Msg"}, mapping.State: {"State"}, mapping.CreatedAt: {"CreateTime"}, mapping.Worker: {"Reader"},
			mapping.ClaimedAt: {"Taken"}, mapping.FinishedAt: {"Done"}, mapping.Attempts: {"Tries"},
		},
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "N"}, backends.StateClaimed: {Text: "A"}, backends.StateDone: {Text: "C"}, backends.StateDead: {Text: "E"}},
		Where:  map[string]mapping.Value{"MsgTypeCode": {Text: "ORD"}},
	}
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	k := newSQLiteKit(t, sqliteMessages, map[string]mapping.Table{"q": sqliteMessagesTable()})
	jobs := k.claim("q", 2)
	if len(jobs) != 2 || jobs[0].ID != "1" || jobs[1].ID != "3" || string(jobs[1].Payload) != "two" || jobs[0].Attempt != 1 {
		t.Fatalf("%+v", jobs)
	}
	k.wantRows("SELECT strftime('%s', CreateTime) FROM MsgQueue WHERE MsgId = 1", fmt.Sprint(jobs[0].EnqueuedAt.Unix()))
	k.wantRows("SELECT State || Reader || (Taken BETWEEN CreateTime AND CURRENT_TIMESTAMP) FROM MsgQueue WHERE MsgId < 4 AND MsgTypeCode = 'ORD'", "Aw1", "Aw1")
	k.write(backends.Ack{Leases: leases(jobs[0])}, 0)
	k.write(backends.Ack{Leases: leases(jobs[0])}, 1)
	k.write(backends.Nack{Leases: leases(jobs[1]), Error: "why"}, 0) // ready again in an hour
	k.wantRows("SELECT MsgId || State || coalesce(Reader, '-') || Tries || (Done IS NOT NULL) FROM MsgQueue", "1Cw01", "2N-00", "3N-10", "4N-00")
	third := k.one("q")
	if third.ID != "4" || len(k.claim("q", 1)) > 0 {
		t.Errorf("%+v", third)
	}
	// Its own cleaner resets the row, and its own consumer claims it.
	k.sql("UPDATE MsgQueue SET Reader = 'own', Taken = '2020-01-01 00:00:00' WHERE MsgId = 4")
	k.write(backends.Ack{Leases: leases(third)}, 1)
	k.wantRows("SELECT State || Reader FROM MsgQueue WHERE MsgId = 4", "Aown")
	if r := k.maintain(backends.Maintenance{Waiting: []string{"q"}}); len(r.MadeReady) != 1 { // it is stuck
		t.Errorf("%+v", r)
	}
	if r := k.maintain(backends.Maintenance{Waiting: []string{"q"}}); len(r.Ready) != 1 {
		t.Errorf("%+v", r)
	}
	if st, err := k.Stats(t.Context(), "q"); err != nil || st[0].Ready != 1 || st[0].Scheduled != 1 || st[0].Done != 1 || st[0].Claimed != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	// A lost sidecar.
	lost := k.one("q")
	k.sql("UPDATE qsidecar_sidecars SET dead = 1")
	if r := k.maintain(backends.Maintenance{}); r.Reaped[backends.CauseSidecarLost] != 1 {
		t.Errorf("%+v", r)
	}
	k.write(backends.Ack{Leases: leases(lost)}, 1)
	k.wantRows("SELECT State || Tries || coalesce(Reader, '-') FROM MsgQueue WHERE MsgId = 4", "N1-")
}

func TestSQLiteEnqueueAndCommands(t *testing.T) {
	t.Parallel()
	m := sqliteMessagesTable()
	k := newSQLiteKit(t, sqliteMessages, map[string]mapping.Table{"q": m})
	r := k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: []byte("it's \x00 new")}, {Queue: "managed"}}}, 0)
	if r.Stored[0].ID != "5" || r.Stored[1].ID != "1" {
		t.Errorf("%+v", r)
	}
	k.wantRows("SELECT MsgTypeCode || State || hex(Msg) FROM MsgQueue WHERE MsgId = 5", "ORDN697427732000206E6577")
	var u *backends.UnsupportedError
	if _, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Priority: 1}}}}}); !errors.As(err, &u) || u.Role != "priority" {
		t.Errorf("%v", err)
	}
	jobs := k.claim("q", 3)
	k.write(backends.Nack{Leases: leases(jobs[0]), Error: "no", Dead: true}, 0)
	k.write(backends.Extend{Leases: leases(jobs[1]), Lease: time.Hour}, 0)
	k.peek(backends.Peek{State: backends.StateDead, Max: 9}, "1:dead:1 ")
	k.command(backends.Command{Kind: backends.Reclaim, IDs: []string{"3"}}, 1)
	k.command(backends.Command{Kind: backends.Retry, All: true}, 1)
	k.peek(backends.Peek{State: backends.StateReady, Max: 9}, "1:ready:0 3:ready:0 5:ready:0 ")
	k.command(backends.Command{Kind: backends.Delete, IDs: []string{"3", "4"}}, 1)
	k.command(backends.Command{Kind: backends.Pause}, 0)
	if len(k.claim("q", 1)) > 0 {
		t.Error("a paused queue gave a job")
	}
}

// TestSQLiteOddTables has names that would end a statement, NULL and booleans as states, a key of text,
// an archive.
func TestSQLiteOddTables(t *testing.T) {
	t.Parallel()
	m := mapping.Table{
		Name:    `que'ue; DROP TABLE "x`,
		Columns: map[mapping.Role][]string{mapping.ID: {`i"d`}, mapping.Payload: {"select", "n", "b"}, mapping.State: {"busy"}, mapping.Priority: {"order"}, mapping.RunAt: {"when"}},
		States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "false"}, backends.StateClaimed: {Text: "true"}, backends.StateDead: {Null: true}},
		Where:   map[string]mapping.Value{`ki\nd`: {Text: `it's \ "x"`}}, OnAck: mapping.Archive, Archive: "old",
	}
	k := newSQLiteKit(t, `CREATE TABLE "que'ue; DROP TABLE ""x" ("i""d" TEXT PRIMARY KEY, "select" TEXT, n, b BLOB, busy BOOLEAN DEFAULT 0, "order" INT, "when" DATETIME, "ki\nd" TEXT);
		CREATE TABLE old ("select" TEXT, "i""d" TEXT, other); CREATE VIEW q AS SELECT * FROM "que'ue; DROP TABLE ""x";
		INSERT INTO "que'ue; DROP TABLE ""x" VALUES ('a,b', 'x', 7, x'00ff', 0, 1, NULL, 'it''s \ "x"'), ('first', NULL, 'text', NULL, 0, 2, '2020-01-01 00:00:00', 'it''s \ "x"'),
			('later', '', 1, NULL, 0, 3, '2100-01-01 00:00:00', 'it''s \ "x"'), (NULL, '', 1, NULL, 0, 4, NULL, 'it''s \ "x"'), ('other', '', 1, NULL, 0, 1, NULL, 'y')`,
		map[string]mapping.Table{"q": m})
	jobs := k.claim("q", 5)
	if len(jobs) != 2 || jobs[0].ID != "first" || string(jobs[0].Payload) != `{"b":null,"n":"text","select":null}` ||
		jobs[1].ID != "a,b" || string(jobs[1].Payload) != `{"b":"AP8=","n":"7","select":"x"}` || jobs[1].Priority != 1 {
		t.Fatalf("%+v", jobs)
	}
	k.wantRows(`SELECT "i""d" FROM q WHERE busy = 1 ORDER BY 1`, "a,b", "first")
	k.write(backends.Ack{Leases: leases(jobs[1])}, 0)
	k.wantRows(`SELECT "i""d" || "select" FROM old`, "a,bx")
	k.write(backends.Nack{Leases: leases(jobs[0]), Dead: true}, 0)
	k.wantRows(`SELECT "i""d" FROM q WHERE busy IS NULL`, "first")
	k.write(backends.Nack{Leases: leases(jobs[0])}, 1)
	k.wantRows(`SELECT coalesce("i""d", 'no key') || busy FROM q WHERE busy IS NOT NULL ORDER BY "order"`, "other0", "later0", "no key0")
}

// TestSQLiteLastSecond: a job that is for the last second there is waits for it.
func TestSQLiteLastSecond(t *testing.T) {
	t.Parallel()
	m := mapping.Table{
		Name:    "jobs",
		Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.RunAt: {"due"}},
		States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "taken"}, backends.StateDone: {Text: "done"}},
	}
	k := newSQLiteKit(t, "CREATE TABLE jobs (id INTEGER PRIMARY KEY, state TEXT DEFAULT 'new', due TEXT)", map[string]mapping.Table{"q": m})
	k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", RunAt: time.UnixMilli(253402300799999)}}}, 0)
	if jobs := k.claim("q", 1); len(jobs) > 0 {
		t.Errorf("it was claimed: %+v", jobs)
	}
	k.wantRows("SELECT due FROM jobs", "9999-12-31 23:59:59")
}

// TestSQLiteKeep: finished rows are deleted after their retention, from the table and its archive.
func TestSQLiteKeep(t *testing.T) {
	t.Parallel()
	m := mapping.Table{
		Name:       "jobs",
		Columns:    map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.FinishedAt: {"done"}},
		States:     map[backends.State]mapping.Value{backends.StateReady: {Text: "N"}, backends.StateClaimed: {Text: "A"}, backends.StateDone: {Text: "C"}, backends.StateDead: {Text: "E"}},
		RetainDone: time.Hour, RetainDead: 2 * time.Hour,
	}
	into := m
	into.Name, into.OnAck, into.Archive = "moved", mapping.Archive, "archive"
	k := newSQLiteKit(t, `CREATE TABLE jobs (id INTEGER PRIMARY KEY, state TEXT, done DATETIME);
		CREATE TABLE moved (id INTEGER PRIMARY KEY, state TEXT, done DATETIME); CREATE TABLE archive (id INT, state TEXT, done DATETIME);
		INSERT INTO jobs VALUES (1, 'C', datetime('now', '-61 minutes')), (2, 'C', datetime('now', '-40 minutes')), (3, 'C', NULL),
			(4, 'E', datetime('now', '-121 minutes')), (5, 'E', datetime('now', '-100 minutes')), (6, 'N', '2020-01-01 00:00:00');
		INSERT INTO moved SELECT id, state, done FROM jobs; INSERT INTO archive SELECT id, state, done FROM jobs`,
		map[string]mapping.Table{"jobs": m, "moved": into})
	if r := k.maintain(backends.Maintenance{Prune: true}); r.Pruned != 7 {
		t.Errorf("%+v", r)
	}
	for table, want := range map[string][]string{"jobs": {"2", "3", "5", "6"}, "moved": {"1", "2", "3", "5", "6"}, "archive": {"2", "3"}} {
		k.wantRows("SELECT id FROM "+table+" ORDER BY 1", want...)
	}
}
