package e2e

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateGolden = flag.Bool("update", false, "write the golden files anew")

// proposed is a table, and what `qsidecar adopt` has to make of it.
type proposed struct {
	name  string // of the golden file, with its engine's
	table string
	ddl   string
	queue string // in the proposal
	job   string // the id of the first job that it serves; empty: the config needs a decision before that
	lacks string // that decision, in check's words
}

// proposals run on one server, each in a database of its own.
type proposals struct {
	engine string
	all    []proposed
}

var rowsOfE = `INSERT INTO my_queue (state, parameters, worker_name, finished_dt, error_message) VALUES ('done', '{"n": 1}', 'w', '2026-01-02 03:04:05', NULL), ('error', '{"n": 2}', 'w', NULL, 'no'), ('waiting', '{"n": 3}', NULL, NULL, NULL);`

var postgresProposals = proposals{"postgres", []proposed{
	{name: "b", table: "worker_queue", queue: "worker_queue", lacks: "queues.worker_queue.states.claimed: nothing in a row would say that it is being worked on", ddl: `CREATE TABLE worker_queue (id bigserial PRIMARY KEY, command text NOT NULL, is_done boolean NOT NULL DEFAULT false, failure_count smallint NOT NULL DEFAULT 0);
		INSERT INTO worker_queue (command, is_done, failure_count) VALUES ('a', true, 0), ('b', false, 3), ('c', false, 1);`},
	{name: "d", table: "msgqueue", queue: "msgqueue", job: "1", ddl: strings.ReplaceAll(systemD.ddl, "%d", "2") + `
		INSERT INTO MsgQueue (MsgTypeCode, State, ReaderCode, TakenTime, DoneTime) VALUES ('ORD', 'A', 'r1', now(), NULL), ('ORD', 'C', 'r1', now(), now()), ('INV', 'E', 'r2', now(), NULL);`},
	{name: "e", table: "public.my_queue", queue: "my_queue", job: "3", ddl: strings.ReplaceAll(systemE.ddl, "%d", "0") + rowsOfE},
}}

var sqliteProposals = proposals{"sqlite", []proposed{
	{name: "d", table: "MsgQueue", queue: "MsgQueue", job: "1", ddl: `CREATE TABLE MsgQueue (MsgId integer PRIMARY KEY AUTOINCREMENT, MsgTypeCode char(3) NOT NULL, SourceCode varchar(10) NULL,
			State char(1) NOT NULL DEFAULT 'N', CreateTime datetime NOT NULL DEFAULT CURRENT_TIMESTAMP, Msg text NULL, ReaderCode varchar(20) NULL, TakenTime datetime NULL, DoneTime datetime NULL);
		CREATE INDEX msgs ON MsgQueue (MsgTypeCode, State, CreateTime);
		INSERT INTO MsgQueue (MsgTypeCode, State, Msg) VALUES ('ORD', 'N', '1'), ('ORD', 'A', '2'), ('INV', 'C', '3');`},
	{name: "e", table: "my_queue", queue: "my_queue", job: "3", ddl: `CREATE TABLE my_queue (queue_item_id integer PRIMARY KEY,
			state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'processing', 'done', 'error')),
			parameters json NOT NULL, request_id text UNIQUE, user_id int, created_dt datetime NOT NULL DEFAULT CURRENT_TIMESTAMP, finished_dt datetime,
			error_message text, worker_name text, result json, user_context json);
		CREATE INDEX waiting ON my_queue (created_dt, queue_item_id) WHERE state = 'waiting';` + rowsOfE},
}}

// TestAdoptCommandOnAFile: as below, on SQLite.
func TestAdoptCommandOnAFile(t *testing.T) {
	t.Parallel()
	sqliteProposals.run(t, func(t testing.TB) string { return "sqlite:" + filepath.Join(t.(*testing.T).TempDir(), "own.db") })
}

// TestAdoptCommandRefuses: what cannot be adopted, and a command that says too little.
func TestAdoptCommandRefuses(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	owners(t, s.url).script(`CREATE TABLE Things (id int, state text); CREATE VIEW above AS SELECT * FROM Things; CREATE TABLE maybe (id text UNIQUE);`)
	for table, words := range map[string][]string{
		"Things":  {`the table Things cannot be adopted: it has no primary key`, `ALTER TABLE "main"."Things" ADD PRIMARY KEY`},
		"maybe":   {"no unique key of columns that are never NULL"},
		"above":   {"it is a view, and only a table's rows can be locked"},
		"THINGS":  {"there is no such table", "there is Things"},
		"a.b":     {"there is no schema a"},
		"nothing": {"there is no such table: see that it is spelled as the database has it"},
	} {
		said := cli(t, s.dir, nil, "adopt", "--database", s.url, table)
		if said.tells(t, 1, words...); said.out != "" {
			t.Errorf("%s: it printed %s", table, said.out)
		}
	}
	cli(t, s.dir, nil, "adopt", "Things").tells(t, 2, "which database?", "QSIDECAR_DATABASE")
	cli(t, s.dir, nil, "adopt", "--database", s.url).tells(t, 2, "takes one table")
	cli(t, s.dir, nil, "adopt", "--database", s.url, `"a`).tells(t, 2, "a quote is not closed")
	cli(t, s.dir, nil, "adopt", "--database", "postgres://u:secret@h/d", "t").tells(t, 2, "seen by every user of this host")
	cli(t, s.dir, nil, "adopt", "--database", "sqlite:"+s.dir+"/none.db", "t").tells(t, 1, "none.db")
}

// run has the command propose a config for each table, holds that against its golden
// file, has check read it, and serves a job by it.
func (p proposals) run(t *testing.T, database func(t testing.TB) string) {
	for _, c := range p.all {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, p.engine, database(t))
		})
	}
}

// where is the line that names the server.
var where = regexp.MustCompile(`(?m)^  main:  # .*\n    url: .*$`)

func (c proposed) run(t *testing.T, engine, at string) {
	s := newSite(t)
	s.url = at
	db := owners(t, at)
	db.script(c.ddl)
	url := filepath.Join(s.dir, "url")
	if err := os.WriteFile(url, []byte(at+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	said := cli(t, s.dir, nil, "adopt", "--database", "@"+url, c.table)
	if said.code != 0 || said.diag != "" {
		t.Fatalf("adopt exits with %d and says %s", said.code, said.diag)
	}
	golden := filepath.Join("testdata", "adopt", engine+"-"+c.name+".yaml")
	got := where.ReplaceAllString(said.out, "  main:\n    url: URL")
	if *updateGolden {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", golden, d)
	}
	sc := s.sidecar("proposed")
	if err := os.WriteFile(sc.config, []byte(said.out+"\nlisten: [{socket: "+sc.socket+"}]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if c.job == "" {
		if said := sc.checked(s.dir, 1, "--json").found(t, "problem"); !strings.Contains(said["table"], c.lacks) || strings.Count(said["table"], "\n") != 1 {
			t.Errorf("check says %v, want %s", said, c.lacks)
		}
		return
	}
	sc.checked(s.dir, 0)
	sc.start()
	w := sc.dial()
	job := w.claimOne(c.queue)
	if w.must(msg{"op": "ack", "lease": job.Lease}); job.ID != c.job {
		t.Errorf("claimed %+v, want the job %s", job, c.job)
	}
}
