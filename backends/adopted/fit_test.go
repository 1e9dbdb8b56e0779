package adopted_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/postgres"
	pgdiagnose "github.com/qsidecar/qsidecar/backends/postgres/diagnose"
)

// fitting is a database to check mappings against.
type fitting struct {
	*testing.T
	engine *postgres.Store
	c      *pgx.Conn
}

func newFitting(t *testing.T, ddl string) *fitting {
	t.Helper()
	url := server.Database(t)
	f := &fitting{T: t, c: connect(t, url)}
	f.sql(ddl)
	var err error
	if f.engine, err = postgres.Open(t.Context(), postgres.Options{URL: url}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fitting) sql(text string) {
	f.Helper()
	if _, err := f.c.Exec(f.Context(), text); err != nil {
		f.Fatalf("%s: %v", text, err)
	}
}

// misfits are those of a mapping, a line each.
func (f *fitting) misfits(m mapping.Table) string {
	f.Helper()
	_, wrong, err := adopted.Check(f.Context(), pgdiagnose.New(f.engine), map[string]mapping.Table{"q": m})
	if err != nil {
		f.Fatal(err)
	}
	var b strings.Builder
	for _, w := range wrong {
		fmt.Fprintln(&b, w)
	}
	return b.String()
}

const kinds = `
CREATE TYPE mood AS ENUM ('new', 'busy', 'done', 'it''s "odd", this');
CREATE TABLE jobs (id bigint PRIMARY KEY, s text, c char(1), v varchar(4), n smallint, d numeric(3), b boolean, e mood, u uuid, j jsonb, js json, at timestamptz, raw bytea,
  must int NOT NULL DEFAULT 1, made int GENERATED ALWAYS AS (1) STORED, day date, tiny smallint)`

// on is a mapping of the table, with that column as its state.
func on(column, ready, claimed string) mapping.Table {
	return mapping.Table{
		Name: "jobs", OnAck: mapping.Delete, Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {column}},
		States: map[backends.State]mapping.Value{backends.StateReady: {Text: ready}, backends.StateClaimed: {Text: claimed}},
	}
}

// TestIDsThatChange checks that no key is accepted whose text depends on the session's time zone.
func TestIDsThatChange(t *testing.T) {
	t.Parallel()
	f := newFitting(t, `CREATE TABLE jobs (id bigint, r tstzrange, a timestamptz(3)[], w tsrange, state text, UNIQUE (id, r), UNIQUE (id, a), PRIMARY KEY (id, w));
		ALTER TABLE jobs ALTER r SET NOT NULL, ALTER a SET NOT NULL`)
	for column, want := range map[string]string{"r": "type tstzrange, which can't be part", "a": "type timestamp(3) with time zone[], which", "w": ""} {
		m := on("state", "new", "busy")
		m.Columns[mapping.ID] = []string{"id", column}
		if got := f.misfits(m); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %s", column, got)
		}
	}
}

// TestStatesFitTheirColumn: values that a column cannot hold are misfits, which name their key. Others
// are accepted.
func TestStatesFitTheirColumn(t *testing.T) {
	t.Parallel()
	f := newFitting(t, kinds)
	for _, c := range []struct {
		column, ready, claimed string
		want                   string // empty: it fits
	}{
		{"s", "waiting", "'); DROP TABLE jobs; --", ""},
		{"c", "N", "A", ""},
		{"c", "N", "AB", `queues.q.states.claimed: "AB" is longer than the column c holds (character(1))`},
		{"v", "wait", "takän", `"takän" is longer than the column v holds (character varying(4))`},
		{"v", "äöüß", "", ""},
		{"n", "1", "-2", ""},
		{"n", "waiting", "2", `queues.q.states.ready: the column n is of the type smallint, and "waiting" is not a whole number`},
		{"n", "1", "32768", `queues.q.states.claimed: the column n is of the type smallint, which holds -32768 to 32767, and 32768 is outside`},
		{"n", "1", "2.0", `"2.0" is not a whole number`},
		{"n", "1", "99999999999999999999", `99999999999999999999 is outside`},
		{"n", "1", "01", "queues.q.states.ready: it has the same value as states.claimed"},
		{"d", "999", "1000", "which holds -999 to 999, and 1000 is outside"},
		{"b", "false", "yes", ""},
		{"b", "no", "false", "it has the same value as"},
		{"b", "waiting", "true", `queues.q.states.ready: the column b is of the type boolean, and "waiting" is neither true nor false`},
		{"e", "new", `it's "odd", this`, ""},
		{"e", "new", "gone", `queues.q.states.claimed: the column e is of the type public.mood, which has no "gone": it has new, busy, done, it's "odd", this`},
		{"u", "b9f0f6a4-3c3a-4a4e-9f57-0a0f6a0c9e8d", "x", `"x" is not a UUID`},
		{"j", `"waiting"`, "taken", `"taken" is not a JSON text`},
		{"js", `"waiting"`, `"taken"`, "queues.q.table: the database refuses the query for its jobs: "},
		{"at", "infinity", "soon", `"soon" is not a time`},
		{"made", "1", "2", "queues.q.columns.state: the column made is generated, so nothing can be stored in it"},
	} {
		got := f.misfits(on(c.column, c.ready, c.claimed))
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, %q: %q, want %q", c.column, c.ready, c.claimed, got, c.want)
		}
	}
	null := on("must", "1", "2")
	null.States[backends.StateDone] = mapping.Value{Null: true}
	if got := f.misfits(null); !strings.Contains(got, "queues.q.states.done: the column must cannot be NULL") {
		t.Error(got)
	}
}

// TestMappingsFit checks the misfits of the rest of a mapping.
func TestMappingsFit(t *testing.T) {
	t.Parallel()
	f := newFitting(t, kinds+`;
		CREATE TABLE old (id uuid, s varchar(2), v varchar(4) NOT NULL, needed int NOT NULL, c char(1));
		CREATE TABLE apart (x int)`)
	m := on("s", "waiting", "taken")
	m.Columns[mapping.Attempts], m.MaxAttempts = []string{"n"}, 40_000
	m.Columns[mapping.Worker], m.Columns[mapping.Error] = []string{"v"}, []string{"v"}
	m.Columns[mapping.ClaimedAt], m.Columns[mapping.FinishedAt], m.Columns[mapping.CreatedAt] = []string{"at"}, []string{"at"}, []string{"day"}
	m.Columns[mapping.Payload] = []string{"jsn"}
	m.Where = map[string]mapping.Value{"b": {Text: "maybe"}, "kind": {Text: "x"}, "s": {Text: "waiting"}, "v": {Text: "w"}, "must": {Null: true}}
	m.Token = &mapping.Token{Column: "tiny", From: 30_000, To: 40_000}
	m.Order = []mapping.Ordering{{Column: "creatd"}}
	m.OnAck, m.Archive = mapping.Archive, "old"
	got := f.misfits(m)
	for _, want := range []string{
		"queues.q.max_attempts: 40000 is more than the column n holds (smallint): set at most 32767",
		"queues.q.columns.error: the column v also has the role worker",
		"queues.q.columns.created_at: the column day is of the type date",
		"queues.q.columns.payload: the table has no column jsn: did you mean js? It has id, s, ",
		`queues.q.where.b: the column b is of the type boolean, and "maybe" is neither`,
		"queues.q.where.kind: the table has no column kind: it has id, ",
		"queues.q.where.s: the column s also has the role state",
		"queues.q.where.v: the column v also has the role worker",
		"queues.q.where.must: the column must cannot be NULL",
		"queues.q.token.range: the column tiny is of the type smallint, which holds -32768 to 32767, and 40000 is outside",
		"queues.q.order: the table has no column creatd: it has id, ",
		"queues.q.on_ack.archive: the column id is of the type bigint in jobs, but of uuid in old",
		"queues.q.on_ack.archive: the column needed of the table old needs a value, and the table jobs has no such column: give it a default there",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not report %s\n%s", want, got)
		}
	}
	if strings.Contains(got, "finished_at") {
		t.Errorf("one column may have the time of the last change:\n%s", got)
	}
	m = on("s", "waiting", "taken")
	m.Columns[mapping.Worker] = []string{"id"}
	m.Token = &mapping.Token{Column: "c", Text: "me"}
	m.OnAck, m.Archive = mapping.Archive, "apart"
	got = f.misfits(m)
	for _, want := range []string{
		"queues.q.columns.worker: the column id is in the key", `queues.q.token.value: "me" is longer than the column c holds`, "the tables jobs and apart have no column in common",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not report %s\n%s", want, got)
		}
	}
	missing := on("nope", "waiting", "taken")
	missing.OnAck = mapping.Update
	if got := f.misfits(missing); strings.Count(got, "\n") != 1 || !strings.Contains(got, "the table has no column nope") {
		t.Errorf("a missing column of the state gives\n%s\nwant that alone", got)
	}
	m.Archive = "Old"
	if got := f.misfits(m); !strings.Contains(got, "queues.q.on_ack.archive: there is no table Old to move rows to: there is old") {
		t.Error(got)
	}
}

// TestRights: a right that the login lacks is a misfit if the queue needs it, and a fact in check
// if it does not.
func TestRights(t *testing.T) {
	t.Parallel()
	f := newFitting(t, kinds)
	var db string
	if err := f.c.QueryRow(t.Context(), "SELECT current_database()").Scan(&db); err != nil {
		t.Fatal(err)
	}
	role := "clerk_" + db
	f.sql(fmt.Sprintf("CREATE ROLE %q LOGIN; GRANT ALL ON SCHEMA qsidecar TO %[1]q; GRANT ALL ON ALL TABLES IN SCHEMA qsidecar TO %[1]q;"+
		"GRANT ALL ON ALL SEQUENCES IN SCHEMA qsidecar TO %[1]q", role))
	t.Cleanup(func() { // before its database is dropped
		if _, err := f.c.Exec(context.Background(), fmt.Sprintf("DROP OWNED BY %q; DROP ROLE %[1]q", role)); err != nil {
			t.Error(err)
		}
	})
	config := f.c.Config()
	clerk, err := postgres.Open(t.Context(), postgres.Options{URL: fmt.Sprintf("postgres://%s@/%s?host=%s&port=%d", role, db, config.Host, config.Port)})
	if err != nil {
		t.Fatal(err)
	}
	owner := f.engine
	f.engine = clerk // which its Cleanup closes
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	m := on("s", "waiting", "taken")
	for _, step := range []struct{ grant, want string }{
		{"SELECT 1", `queues.q.table: this login lacks SELECT, UPDATE, DELETE on it: GRANT SELECT, UPDATE, DELETE ON "public"."jobs" TO "clerk_`},
		{"GRANT SELECT, DELETE ON jobs TO %q", "queues.q.table: this login lacks UPDATE on it"},
		{"GRANT UPDATE (v) ON jobs TO %q", `queues.q.table: this login lacks UPDATE on its column s: GRANT UPDATE ("s") ON "public"."jobs" TO "clerk_`},
		{"GRANT UPDATE (s) ON jobs TO %q", ""},
	} {
		if step.grant != "SELECT 1" {
			step.grant = fmt.Sprintf(step.grant, role)
		}
		f.sql(step.grant)
		if got := f.misfits(m); step.want == "" && got != "" || !strings.Contains(got, step.want) {
			t.Errorf("%s: %q, want %q", step.grant, got, step.want)
		}
	}
	s, err := adopted.New(t.Context(), pgdiagnose.New(clerk), map[string]mapping.Table{"q": m})
	if err != nil {
		t.Fatal(err)
	}
	found, err := s.Examine(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(found); !strings.Contains(text, "queues.q: a job cannot be enqueued: this login lacks INSERT on ") {
		t.Error(text)
	}
}
