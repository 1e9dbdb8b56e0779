package adopted_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/postgres"
	pgdiagnose "github.com/qsidecar/qsidecar/backends/postgres/diagnose"
)

func TestEnqueue(t *testing.T) {
	t.Parallel()
	k := newKit(t, systemE, map[string]mapping.Table{"e": tableE()})
	batch := backends.CommitContent{Writes: []backends.Write{
		backends.Enqueue{Jobs: []backends.NewJob{
			{Queue: "mail", Payload: []byte("x")}, {Queue: "e", Payload: []byte(`{"n": 4}`)}, {Queue: "mail", Payload: []byte("y")}, {Queue: "e", Payload: []byte(`[5]`)},
		}},
	}}
	r := k.commit(batch).Writes[0]
	if len(r.Stored) != 4 || r.Stored[1].ID != "4" || r.Stored[3].ID != "5" || r.Stored[0].ID == "" || r.Stored[2].ID == "" || len(r.MadeReady) != 2 {
		t.Errorf("%+v", r)
	}
	k.wantRows("SELECT parameters::text FROM my_queue WHERE queue_item_id > 3 ORDER BY 1", "[5]", `{"n": 4}`)
	k.wantRows("SELECT convert_from(payload, 'UTF8') FROM qsidecar.qsidecar_jobs ORDER BY id", "x", "y")
	var u *backends.UnsupportedError
	for role, job := range map[string]backends.NewJob{
		"priority": {Priority: 1}, "run_at": {Delay: time.Second}, "headers": {Headers: map[string]string{"a": "b"}}, "": {Key: "k"},
	} {
		job.Queue, job.Payload = "e", []byte("{}")
		if _, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{job}}}}); !errors.As(err, &u) || u.Role != role {
			t.Errorf("%+v: %v", job, err)
		}
	}
	expiring := backends.NewJob{Queue: "e", Payload: []byte("{}"), Expiry: backends.Expiry{StartWithin: time.Hour}}
	if _, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{expiring}}}}); !errors.As(err, &u) || !strings.HasPrefix(u.What, backends.NoExpiry) {
		t.Errorf("a job that expires: %v", err)
	}
	replacing := backends.NewJob{Queue: "e", Payload: []byte("{}"), Key: "k", OnConflict: backends.ConflictReplace}
	if _, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{replacing}}}}); !errors.As(err, &u) || !strings.HasPrefix(u.What, backends.NoReplace) {
		t.Errorf("a job that replaces another one: %v", err)
	}
	if _, err := k.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "e", Payload: []byte("no JSON")}}}}}); !backends.IsRefused(err) {
		t.Errorf("%v", err)
	}
}

// TestAckAndEnqueue: jobs that come with an ack are stored with it or not at all, whichever of the
// two is in an adopted table.
func TestAckAndEnqueue(t *testing.T) {
	t.Parallel()
	k := newKit(t, systemE, map[string]mapping.Table{"e": tableE()})
	k.commit(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "mail"}, {Queue: "mail"}}}}})
	both := []backends.NewJob{{Queue: "mail", Payload: []byte("next")}, {Queue: "e", Payload: []byte(`"next"`)}}
	for _, queue := range []string{"e", "mail"} {
		ack := backends.Ack{Leases: leases(k.one(queue)), Enqueue: both}
		if r := k.write(ack, 0); len(r.Stored) != 2 || r.Stored[0].ID == "" || r.Stored[1].ID == "" || len(r.MadeReady) != 2 {
			t.Errorf("%s: %+v", queue, r)
		}
		if r := k.write(ack, 1); r.Stored != nil {
			t.Errorf("%s, a lost lease: %+v", queue, r)
		}
	}
	k.wantRows(`SELECT count(*)::text FROM my_queue WHERE parameters = '"next"'`, "2")
	k.wantRows(`SELECT count(*)::text FROM qsidecar.qsidecar_jobs WHERE payload = 'next'`, "2")
}

// TestClaimOfBothKinds: a claim of managed and adopted queues keeps their order.
func TestClaimOfBothKinds(t *testing.T) {
	t.Parallel()
	k := newKit(t, systemE, map[string]mapping.Table{"e": tableE()})
	k.commit(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "first"}, {Queue: "last"}, {Queue: "last"}}}}})
	c := backends.Claim{Queues: []backends.Policy{policy("first"), policy("e"), policy("last")}}
	for range 5 {
		c.Slots = append(c.Slots, k.slot(0))
	}
	jobs := k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}}).Claims[0].Jobs
	got := ""
	for i, j := range jobs {
		got += j.Queue + " "
		if j.Token != c.Slots[i].Token {
			t.Errorf("the job %d has another slot's token", i)
		}
	}
	if got != "first e e e last " {
		t.Error(got)
	}
	k.write(backends.Ack{Leases: leases(jobs...)}, 0)
}

// TestOddTables has names that would end a statement, a payload of several columns, NULL as a state,
// a token, another schema, an archive.
func TestOddTables(t *testing.T) {
	t.Parallel()
	m := mapping.Table{
		Schema: `it's "mine"`, Name: `que'ue; DROP TABLE "x`,
		Columns: map[mapping.Role][]string{
			mapping.ID: {`i"d`}, mapping.Payload: {"select", `a'b`, "n"}, mapping.Headers: {"user"},
			mapping.Priority: {"order"}, mapping.RunAt: {"when"}, mapping.Attempts: {"fails"},
		},
		Where: map[string]mapping.Value{`ki\nd`: {Text: `it's \ "x"`}, "gone": {Null: true}},
		Token: &mapping.Token{Column: "pid", From: 900, To: 999},
		OnAck: mapping.Archive, ArchiveSchema: "public", Archive: "old", UTC: true,
	}
	k := newKit(t, `CREATE SCHEMA "it's ""mine""";
		CREATE TABLE "it's ""mine"""."que'ue; DROP TABLE ""x" ("i""d" uuid PRIMARY KEY, "select" text, "a'b" jsonb, n int, "user" text, "order" int NOT NULL DEFAULT 0,
			"when" timestamp, fails smallint NOT NULL DEFAULT 0, "ki\nd" text NOT NULL, gone boolean, pid int, moved timestamptz GENERATED ALWAYS AS (NULL) STORED);
		CREATE TABLE old ("select" varchar(10), "i""d" uuid, fails int, other text);
		CREATE VIEW q AS SELECT * FROM "it's ""mine"""."que'ue; DROP TABLE ""x"`, map[string]mapping.Table{"odd": m})
	job := backends.NewJob{Queue: "odd", Payload: []byte(`{"select": "x", "a'b": {"c": [1]}, "n": 7}`), Headers: map[string]string{"user": "u'1"}, Priority: 2}
	later := job
	later.RunAt = time.Date(2101, 2, 3, 4, 5, 6, 0, time.UTC)
	r := k.write(backends.Enqueue{Jobs: []backends.NewJob{job, later}}, 0)
	k.wantRows(`SELECT "when"::text FROM q WHERE "when" > now()`, "2101-02-03 04:05:06")
	k.sql(`INSERT INTO q ("i""d", "ki\nd") VALUES (gen_random_uuid(), 'other')`)
	jobs := k.claim("odd", 3)
	if len(jobs) != 1 || jobs[0].ID != r.Stored[0].ID || string(jobs[0].Payload) != `{"a'b":{"c":[1]},"n":7,"select":"x"}` || jobs[0].Headers["user"] != "u'1" || jobs[0].Priority != 2 {
		t.Fatalf("%+v", jobs)
	}
	k.wantRows(`SELECT (pid BETWEEN 900 AND 999)::text FROM q WHERE pid IS NOT NULL`, "true")
	k.write(backends.Nack{Leases: leases(jobs[0]), Error: "x", HasDelay: true}, 0)
	jobs = k.claim("odd", 3)
	if len(jobs) != 1 || jobs[0].Attempt != 2 {
		t.Fatalf("%+v", jobs)
	}
	k.write(backends.Ack{Leases: leases(jobs[0])}, 0)
	k.wantRows(`SELECT concat_ws('|', "select", "i""d", fails, other) FROM old`, "x|"+jobs[0].ID+"|1")
	k.wantRows(`SELECT count(*)::text FROM q`, "2")
	stats, err := k.Stats(t.Context(), "odd")
	if err != nil || len(stats) != 1 || stats[0].Scheduled != 1 || stats[0].Ready+stats[0].Claimed+stats[0].Dead+stats[0].Done != 0 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// TestWhatCannotBeAdopted: the error lists everything that does not fit.
func TestWhatCannotBeAdopted(t *testing.T) {
	t.Parallel()
	url := server.Database(t)
	c := connect(t, url)
	if _, err := c.Exec(t.Context(), `CREATE TABLE "Jobs" (id int, state text NOT NULL, at text, twice int GENERATED ALWAYS AS (id * 2) STORED); CREATE VIEW jobs_view AS SELECT * FROM "Jobs"`); err != nil {
		t.Fatal(err)
	}
	engine, err := postgres.Open(t.Context(), postgres.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	columns := func(id string) map[mapping.Role][]string {
		return map[mapping.Role][]string{mapping.ID: {id}, mapping.State: {"state"}}
	}
	bad := mapping.Table{Name: "Jobs", Columns: columns("id"), States: map[backends.State]mapping.Value{backends.StateReady: {Null: true}}, Order: []mapping.Ordering{{Column: "no"}}}
	bad.Columns[mapping.ClaimedAt], bad.Columns[mapping.Worker], bad.Columns[mapping.Error], bad.Columns[mapping.Result] = []string{"at"}, []string{"STATE"}, []string{"twice"}, []string{"id", "at"}
	_, err = adopted.New(t.Context(), pgdiagnose.New(engine), map[string]mapping.Table{
		"lower": {Name: "jobs", Columns: columns("id")}, "view": {Name: "jobs_view", Columns: columns("id")}, "none": {Name: "none", Schema: "nowhere"}, "bad": bad,
	})
	for _, want := range []string{
		"queues.lower.table: there is no table jobs: there is Jobs", "queues.view.table: jobs_view is a view", "queues.none.table: there is no table nowhere.none",
		"queues.bad.columns.id: the column id alone is no primary key", "queues.bad.states.claimed: ", "queues.bad.states.ready: the column state cannot be NULL",
		"queues.bad.on_ack: update needs states.done", "queues.bad.order: the table has no column no: it has id, state, at, twice",
		"queues.bad.columns.claimed_at: the column at is of the type text", "queues.bad.columns.worker: the table has no column STATE: it is called state there",
		"queues.bad.columns.error: the column twice is of the type integer", "queues.bad.columns.error: the column twice is generated", "queues.bad.columns.result: it takes one column, but 2 are listed",
	} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

// TestCreatedAtWithoutADefault: a new job has the time, although its column can be NULL.
func TestCreatedAtWithoutADefault(t *testing.T) {
	m := mapping.Table{
		Name: "made", Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.CreatedAt: {"made_at"}},
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: "N"}, backends.StateClaimed: {Text: "A"}, backends.StateDone: {Text: "C"}},
	}
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, fmt.Sprintf("CREATE TABLE made (id %s, state char(1) NOT NULL, made_at %s NULL)", serial(on.name), on.zoneless), map[string]mapping.Table{"q": m})
		k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}, 0)
		k.wantRows("SELECT concat_ws('', count(made_at)) FROM made", "1")
	})
}

// serial is the type of a key that the database numbers.
func serial(product string) string {
	switch product {
	case "PostgreSQL":
		return "bigserial PRIMARY KEY"
	case "SQLite":
		return "integer PRIMARY KEY AUTOINCREMENT"
	}
	return "bigint AUTO_INCREMENT PRIMARY KEY"
}
