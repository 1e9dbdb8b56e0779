package adopted

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// wrongTable is a table with a mapping that can't be served.
type wrongTable struct {
	queue  string
	ddl    string
	config string
	key    string // the config key that check and serve name
	words  string // what they report about it
}

// unusualTable is a table that can be served although it looks wrong.
type unusualTable struct {
	queue  string
	ddl    string
	config string
	rows   string // a query for the remaining rows after its only job, 1, was acked
	want   string
}

// engineTables are the tables of an engine.
type engineTables struct {
	wrong   []wrongTable
	odd     []unusualTable
	both    string   // DDL that several tables need
	reports string   // what check reports about the odd tables
	never   []string // tables that no config can serve, which adopt reports too
}

var postgresTables = engineTables{
	both:  `CREATE SCHEMA "Elsewhere";`,
	never: []string{"no_key", "nullable_key", "above", "Missing", "things"},
	wrong: []wrongTable{
		{
			"no-key", `CREATE TABLE no_key (id int, state text);`,
			`{table: no_key, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"columns.id", "the column id alone is no primary key and no unique key: each job must be one row",
		},
		{
			"nullable-key", `CREATE TABLE nullable_key (id int UNIQUE, state text);`,
			`{table: nullable_key, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"columns.id", "no primary key and no unique key",
		},
		{
			"view", `CREATE TABLE below (id int PRIMARY KEY, state text);
			CREATE VIEW above AS SELECT * FROM below;`,
			`{table: above, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"table", "above is a view: only a table's rows can be locked",
		},
		{
			"missing", `CREATE TABLE missing (id int PRIMARY KEY, state text, parameters jsonb);`,
			`{table: missing, columns: {id: id, state: state, payload: paramters}, states: {ready: a, claimed: b, done: c}}`,
			"columns.payload", "the table has no column paramters: did you mean parameters? It has id, state, parameters",
		},
		{
			"no-table", ``,
			`{table: Missing, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"table", "there is no table Missing: there is missing",
		},
		{
			"type", `CREATE TABLE type (id int PRIMARY KEY, state smallint NOT NULL);`,
			`{table: type, columns: {id: id, state: state}, states: {ready: waiting, claimed: 2, done: 3}}`,
			"states.ready", `the column state is of the type smallint, and "waiting" is not a whole number`,
		},
		{
			"long", `CREATE TABLE long (id int PRIMARY KEY, state char(1) NOT NULL);`,
			`{table: long, columns: {id: id, state: state}, states: {ready: N, claimed: A, done: Done}}`,
			"states.done", `"Done" is longer than the column state holds (character(1))`,
		},
		{
			"null", `CREATE TABLE nulls (id int PRIMARY KEY, state text NOT NULL);`,
			`{table: nulls, columns: {id: id, state: state}, states: {ready: null, claimed: b, done: c}}`,
			"states.ready", "the column state cannot be NULL",
		},
		{
			"letters", `CREATE TABLE "Letters" ("Id" int PRIMARY KEY, "State" text);`,
			`{table: Letters, columns: {id: id, state: State}, states: {ready: a, claimed: b, done: c}}`,
			"columns.id", "the table has no column id: it is called Id there",
		},
		{
			"schema", `CREATE TABLE "Elsewhere".things (id int PRIMARY KEY, state text);`,
			`{table: things, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"table", "there is no table things: there is Elsewhere.things",
		},
	},
	odd: []unusualTable{
		{
			"reserved", `CREATE TABLE "select" ("order" int PRIMARY KEY, "from" text, "it""s; DROP TABLE ""select"" --" text, "a,b" int);
			INSERT INTO "select" VALUES (1, 'a', 'p', 5);`,
			`{table: select, columns: {id: order, state: from, payload: "it\"s; DROP TABLE \"select\" --"}, where: {"a,b": 5}, order: ["a,b desc", order], states: {ready: a, claimed: "b'; --", done: "c\\"}}`,
			`SELECT concat_ws('|', "order", "from", "it""s; DROP TABLE ""select"" --") FROM "select"`, `1|c\|p`,
		},
		{
			"elsewhere", `CREATE TABLE "Elsewhere"."Que.ue" ("ID" int PRIMARY KEY, "State" text);
			INSERT INTO "Elsewhere"."Que.ue" VALUES (1, 'a');`,
			`{table: 'Elsewhere."Que.ue"', columns: {id: ID, state: State}, states: {ready: a, claimed: b, done: c}}`,
			`SELECT "State" FROM "Elsewhere"."Que.ue"`, "c",
		},
		{
			"truth", `CREATE TABLE truth (id uuid PRIMARY KEY, done boolean, pid int);
			INSERT INTO truth VALUES ('0b9d7c50-7f3e-4b07-8d2c-0d8c6a1b2c3d', false);`,
			`{table: truth, columns: {id: id, state: done}, states: {ready: no, done: yes}, token: {column: pid, range: [5, 9]}}`,
			`SELECT concat_ws('|', done, pid BETWEEN 5 AND 9) FROM truth`, "t|t",
		},
		{
			"endless", `CREATE TABLE endless (id int PRIMARY KEY, state char(1), made timestamptz, due timestamp);
			INSERT INTO endless VALUES (1, 'N', 'infinity', '-infinity');`,
			`{table: endless, columns: {id: id, state: state, created_at: made, run_at: due}, states: {ready: N, claimed: A, done: C}, order: [made]}`,
			`SELECT concat_ws('|', state, made) FROM endless`, "C|infinity",
		},
		{
			"ancient", `CREATE TABLE ancient (id int PRIMARY KEY, state char(1), made timestamp, due timestamptz);
			INSERT INTO ancient VALUES (1, 'N', '4713-01-01 BC', '4713-01-01 BC');`,
			`{table: ancient, columns: {id: id, state: state, created_at: made, run_at: due}, states: {ready: N, claimed: A, done: C}}`,
			`SELECT state FROM ancient`, "C",
		},
		{
			"far", `CREATE TABLE far (id int PRIMARY KEY, state char(1), made timestamp);
			INSERT INTO far VALUES (1, 'N', '294276-12-31');`,
			`{table: far, columns: {id: id, state: state, created_at: made}, states: {ready: N, claimed: A, done: C}}`,
			`SELECT state FROM far`, "C",
		},
	},
}

// TestAdoptedTables checks tables that look wrong, what check and serve report about tables that
// are wrong, and what `qsidecar adopt` proposes.
func TestAdoptedTables(t *testing.T) {
	_, p := kit.NewPostgresSite(t)
	h := adopt.Server{Database: p.Database, Leases: "qsidecar.qsidecar_leases", Addr: p.Addr}
	t.Run("tables", func(t *testing.T) { postgresTables.run(t, h) })
	t.Run("proposed", func(t *testing.T) { postgresProposals.run(t, h.Database) })
}

func (e engineTables) run(t *testing.T, h adopt.Server) {
	t.Parallel()
	s := kit.NewSite(t)
	s.URL = h.Database(t)
	db := databases.Owners(t, s.URL)
	lines(db, e.both)
	var wrong, odd strings.Builder
	for _, w := range e.wrong {
		lines(db, w.ddl)
		wrong.WriteString("  " + w.queue + ": " + w.config + "\n")
	}
	for _, o := range e.odd {
		lines(db, o.ddl)
		odd.WriteString("  " + o.queue + ": " + o.config + "\n")
	}
	s.Queues = odd.String() + wrong.String()
	e.refused(t, s)
	s.Queues = odd.String()
	e.served(t, s, db)
}

// refused checks that check reports all problems at once, and that serve reports the same of each queue, and starts with the
// others.
func (e engineTables) refused(t *testing.T, s *kit.Site) {
	sc := s.Sidecar("wrong")
	problems := sc.Check(s.Dir, 1, "--json").Problems(t, "error")["table"]
	sc.Start()
	var log string
	testwait.Until(t, "the sidecar reports every table", func() bool {
		text, err := os.ReadFile(sc.LogFile)
		if err != nil {
			t.Fatal(err)
		}
		log = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(string(text))
		return strings.Count(log, "obstacle_found") >= len(e.wrong)
	})
	sc.Signal(syscall.SIGTERM)
	sc.WaitExit()
	for _, w := range e.wrong {
		want := "queues." + w.queue + "." + w.key + ": "
		for by, output := range map[string]string{"check": problems, "serve": log} {
			_, rest, found := strings.Cut(output, want)
			if line, _, _ := strings.Cut(rest, "\n"); !found || !strings.Contains(line, w.words) {
				t.Errorf("%s does not report %s%s:\n%s", by, want, w.words, output)
			}
		}
	}
	alike(t, problems, log)
	url := filepath.Join(s.Dir, "url")
	if err := os.WriteFile(url, []byte(s.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, table := range e.never {
		kit.RunCLI(t, s.Dir, nil, "adopt", "--database", "@"+url, table).WantError(t, 1, "the table "+table+" cannot be adopted: ")
	}
	for _, o := range e.odd {
		if strings.Contains(problems, "queues."+o.queue+".") {
			t.Errorf("check finds fault with %s: %s", o.queue, problems)
		}
	}
}

// alike checks that serve reports what check does.
func alike(t *testing.T, problems, log string) {
	t.Helper()
	for line := range strings.Lines(problems) {
		text, do, _ := strings.Cut(strings.TrimSpace(line), " → ")
		if !strings.Contains(log, text) && !strings.Contains(log, text+": "+do) {
			t.Errorf("check reports %s, but serve does not", line)
		}
	}
}

// served checks that the odd tables work.
func (e engineTables) served(t *testing.T, s *kit.Site, db databases.OwnersDB) {
	sc := s.Sidecar("odd")
	early := sc.Check(s.Dir, 0)
	sc.Start()
	later := sc.Check(s.Dir, 0)
	if !strings.Contains(early.Stdout, e.reports) {
		t.Errorf("check does not report %q:\n%s", e.reports, early.Stdout)
	}
	w := sc.Dial()
	w.Must(kit.Msg{"op": "hello", "worker": "w→1"})
	w.Must(kit.Msg{"op": "stats"})
	for _, o := range e.odd {
		jobs := w.Must(kit.Msg{"op": "peek", "queue": o.queue}).Jobs
		if len(jobs) != 1 {
			t.Errorf("%s: peek shows %+v", o.queue, jobs)
		} else if at := jobs[0].EnqueuedAt; at != nil && !strings.Contains(o.config, "created_at:") {
			t.Errorf("%s: peek shows the time %d, which no column has", o.queue, *at)
		}
		w.Must(kit.Msg{"op": "nack", "lease": w.ClaimOne(o.queue).Lease, "error": "it's → ☃", "delay_ms": 0})
		job := w.ClaimOne(o.queue)
		w.Must(kit.Msg{"op": "ack", "lease": job.Lease})
		if got := strings.Join(db.Texts(o.rows), "\n"); got != o.want {
			t.Errorf("%s: after the ack of %+v the row is %q, want %q", o.queue, job, got, o.want)
		}
		if !strings.Contains(later.Stdout, "queues."+o.queue+": the plan of its claim reads ") || !strings.Contains(early.Stdout, "the queue "+o.queue+" lives in the table ") {
			t.Errorf("check does not tell about %s:\n%s", o.queue, later.Stdout)
		}
	}
}

// lines runs one statement per line.
func lines(db databases.OwnersDB, text string) {
	db.T.Helper()
	for statement := range strings.Lines(text) {
		if statement = strings.TrimSpace(statement); statement == "" {
			continue
		}
		if _, err := db.ExecContext(db.T.Context(), statement); err != nil {
			db.T.Fatalf("%s: %v", statement, err)
		}
	}
}
