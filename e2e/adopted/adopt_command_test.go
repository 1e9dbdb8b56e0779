package adopted

import (
	"flag"
	"fmt"
	neturl "net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
)

var updateGolden = flag.Bool("update", false, "write the golden files again")

// proposed is a table and the expected result of `qsidecar adopt`.
type proposed struct {
	name  string // prefix of the golden file; the engine is its suffix
	table string
	ddl   string
	queue string // name in the proposal
	job   string // id of the first job that the queue serves; empty if the config first needs a decision
	lacks string // that decision, as check reports it
}

// proposals are tables on one server, each in its own database.
type proposals struct {
	engine string
	all    []proposed
}

var rowsOfE = `INSERT INTO my_queue (state, parameters, worker_name, finished_dt, error_message) VALUES ('done', '{"n": 1}', 'w', '2026-01-02 03:04:05', NULL), ('error', '{"n": 2}', 'w', NULL, 'no'), ('waiting', '{"n": 3}', NULL, NULL, NULL);`

// lacksClaimed is the decision that own consumers keep a row locked while they process it. adopt
// never guesses it.
const lacksClaimed = "queues.worker_queue.states.claimed: nothing in a row shows that it is claimed"

var postgresProposals = proposals{"postgres", []proposed{
	{name: "laravel", table: "jobs", queue: "jobs", job: "2", ddl: `create table "jobs" ("id" bigserial not null primary key, "queue" varchar(255) not null, "payload" text not null, "attempts" smallint not null,
			"reserved_at" integer null, "available_at" integer not null, "created_at" integer not null); create index "jobs_queue_index" on "jobs" ("queue");` + laravelRows("extract(epoch FROM now())::int")},
	{name: "delayed", table: "delayed_jobs", queue: "delayed_jobs", job: "4", ddl: `CREATE TABLE "delayed_jobs" ("id" bigserial primary key, "priority" integer DEFAULT 0 NOT NULL, "attempts" integer DEFAULT 0 NOT NULL, "handler" text NOT NULL,
			"last_error" text, "run_at" timestamp(6), "locked_at" timestamp(6), "failed_at" timestamp(6), "locked_by" character varying, "queue" character varying, "created_at" timestamp(6), "updated_at" timestamp(6));
		CREATE INDEX "delayed_jobs_priority" ON "delayed_jobs" ("priority", "run_at");` + delayedRows("(now() AT TIME ZONE 'UTC')")},
	{name: "b", table: "worker_queue", queue: "worker_queue", lacks: lacksClaimed, ddl: `CREATE TABLE worker_queue (id bigserial PRIMARY KEY, command text NOT NULL, is_done boolean NOT NULL DEFAULT false, failure_count smallint NOT NULL DEFAULT 0);
		INSERT INTO worker_queue (command, is_done, failure_count) VALUES ('a', true, 0), ('b', false, 3), ('c', false, 1);`},
	{name: "d", table: "msgqueue", queue: "msgqueue", job: "1", ddl: strings.ReplaceAll(systemD.DDL, "%d", "2") + `
		INSERT INTO MsgQueue (MsgTypeCode, State, ReaderCode, TakenTime, DoneTime) VALUES ('ORD', 'A', 'r1', now(), NULL), ('ORD', 'C', 'r1', now(), now()), ('INV', 'E', 'r2', now(), NULL);`},
	{name: "e", table: "public.my_queue", queue: "my_queue", job: "3", ddl: strings.ReplaceAll(adopt.SystemE.DDL, "%d", "0") + rowsOfE +
		"CREATE RULE announce AS ON INSERT TO my_queue DO ALSO NOTIFY my_queue_waiting"},
}}

// laravelRows returns two jobs as Laravel writes them, and one that its own worker has claimed.
// since is the current second on the server.
func laravelRows(since string) string {
	return strings.ReplaceAll(`insert into jobs (queue, attempts, reserved_at, available_at, created_at, payload) values ('default', 1, NOW, NOW, NOW, '{}'), ('default', 0, null, NOW, NOW, '{}'), ('default', 0, null, NOW + 3600, NOW, '{}');`, "NOW", since)
}

// delayedRows returns jobs as Delayed Job writes them: a claimed one, a failed one and two ready
// ones. now is the current UTC time on the server.
func delayedRows(now string) string {
	return strings.ReplaceAll(`INSERT INTO delayed_jobs (priority, handler, run_at, locked_at, failed_at, locked_by, created_at, updated_at) VALUES (0, '---', NOW, NOW, NULL, 'host:x pid:1', NOW, NOW),
		(0, '---', NOW, NULL, NOW, NULL, NOW, NOW), (5, '---', NOW, NULL, NULL, NULL, NOW, NOW), (1, '---', NOW, NULL, NULL, NULL, NOW, NOW);`, "NOW", now)
}

var sqliteProposals = proposals{"sqlite", []proposed{
	{name: "laravel", table: "jobs", queue: "jobs", job: "2", ddl: `create table "jobs" ("id" integer primary key autoincrement not null, "queue" varchar not null, "payload" text not null, "attempts" integer not null,
			"reserved_at" integer, "available_at" integer not null, "created_at" integer not null); create index "jobs_queue_index" on "jobs" ("queue");` + laravelRows("unixepoch()")},
	{name: "delayed", table: "delayed_jobs", queue: "delayed_jobs", job: "4", ddl: `CREATE TABLE "delayed_jobs" ("id" integer PRIMARY KEY AUTOINCREMENT NOT NULL, "priority" integer DEFAULT 0 NOT NULL, "attempts" integer DEFAULT 0 NOT NULL,
			"handler" text NOT NULL, "last_error" text, "run_at" datetime(6), "locked_at" datetime(6), "failed_at" datetime(6), "locked_by" varchar, "queue" varchar, "created_at" datetime(6), "updated_at" datetime(6));
		CREATE INDEX "delayed_jobs_priority" ON "delayed_jobs" ("priority", "run_at");` + delayedRows("datetime('now')")},
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

var mysqlProposals = proposals{"mysql", []proposed{
	{name: "laravel", table: "jobs", queue: "jobs", job: "2", ddl: "create table `jobs` (`id` bigint unsigned not null auto_increment primary key, `queue` varchar(255) not null, `payload` longtext not null, `attempts` tinyint unsigned not null, " +
		"`reserved_at` int unsigned null, `available_at` int unsigned not null, `created_at` int unsigned not null) default character set utf8mb4 collate 'utf8mb4_unicode_ci'; " +
		"alter table `jobs` add index `jobs_queue_index`(`queue`);" + laravelRows("unix_timestamp()")},
	{name: "delayed", table: "delayed_jobs", queue: "delayed_jobs", job: "4", ddl: "CREATE TABLE `delayed_jobs` (`id` bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, `priority` int DEFAULT 0 NOT NULL, `attempts` int DEFAULT 0 NOT NULL, " +
		"`handler` text NOT NULL, `last_error` text, `run_at` datetime(6), `locked_at` datetime(6), `failed_at` datetime(6), `locked_by` varchar(255), `queue` varchar(255), `created_at` datetime(6), `updated_at` datetime(6), " +
		"INDEX `delayed_jobs_priority` (`priority`, `run_at`));" + delayedRows("utc_timestamp(6)")},
	{name: "a", table: "things", queue: "things", job: "4", ddl: fmt.Sprintf(systemA.DDL, 4) + `UPDATE things SET status = 3, pid = 17 WHERE id < 3; UPDATE things SET status = 2, pid = 4711 WHERE id = 3;`},
	{name: "c", table: "queue_test", queue: "queue_test", job: "2", ddl: fmt.Sprintf(archivingC.DDL, 3) + `UPDATE queue_test SET transaction_unique = 815 WHERE id = 1;`},
	{name: "d", table: "MsgQueue", queue: "MsgQueue", job: "14", ddl: fmt.Sprintf(systemDOnMySQL.DDL, 3) + `DELETE FROM MsgQueue;
		INSERT INTO MsgQueue (MsgId, MsgTypeCode, State, ReaderCode) VALUES (11, 'ORD', 'A', 'r'), (12, 'ORD', 'C', 'r'), (13, 'INV', 'E', 'r'), (14, 'ORD', 'N', NULL), (15, 'INV', 'N', NULL);`},
	{name: "e", table: "my_queue", queue: "my_queue", job: "3", ddl: `CREATE TABLE my_queue (queue_item_id bigint AUTO_INCREMENT PRIMARY KEY,
			state enum('waiting', 'processing', 'done', 'error') NOT NULL DEFAULT 'waiting',
			parameters json NOT NULL, request_id char(36) UNIQUE, user_id bigint, created_dt datetime NOT NULL DEFAULT CURRENT_TIMESTAMP, finished_dt datetime,
			error_message text, worker_name varchar(40) CHARACTER SET latin1, result json, user_context json, KEY (state, created_dt));` + rowsOfE},
	{name: "numbers", table: "email", queue: "email", lacks: "queues.email.on_ack: update needs states.done", ddl: `CREATE TABLE email (id char(36) PRIMARY KEY, status tinyint(1) NOT NULL, tries int NOT NULL DEFAULT 0, priority smallint NOT NULL DEFAULT 0,
			recipient varchar(200) NOT NULL, subject text, next_attempt_at datetime NULL, updated_at timestamp NULL, is_deleted tinyint(1) NOT NULL DEFAULT 0, KEY (status), CHECK (status IN (0, 1, 9)));
		INSERT INTO email (id, status, recipient, tries) VALUES (uuid(), 0, 'a', 0), (uuid(), 9, 'b', 5), (uuid(), 9, 'c', 5);`},
}}

// holdingProposals are the tables of system B, on servers that can skip locked rows and (old) on
// one that can't.
func holdingProposals(old bool) proposals {
	b := proposed{name: "b", table: "worker_queue", queue: "worker_queue", lacks: lacksClaimed, ddl: `CREATE TABLE worker_queue (id bigint AUTO_INCREMENT PRIMARY KEY, command text NOT NULL,
			is_done boolean NOT NULL DEFAULT FALSE, failure_count smallint NOT NULL DEFAULT 0);
		INSERT INTO worker_queue (command, is_done, failure_count) VALUES ('a', TRUE, 0), ('b', FALSE, 3), ('c', FALSE, 1);`}
	if old {
		return proposals{"mysql-old", []proposed{b}}
	}
	return proposals{"mysql", []proposed{b}}
}

// TestAdoptCommandOnSQLite runs the proposals on SQLite.
func TestAdoptCommandOnSQLite(t *testing.T) {
	sqliteProposals.run(t, func(t testing.TB) string { return "sqlite:" + filepath.Join(t.(*testing.T).TempDir(), "own.db") })
}

// TestAdoptCommandRefuses checks tables that can't be adopted, and incomplete commands.
func TestAdoptCommandRefuses(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	databases.Owners(t, s.URL).Script(`CREATE TABLE Things (id int, state text); CREATE VIEW above AS SELECT * FROM Things; CREATE TABLE maybe (id text UNIQUE);
		CREATE TABLE solid_queue_ready_executions (id integer PRIMARY KEY, job_id bigint NOT NULL, queue_name varchar NOT NULL, priority integer NOT NULL DEFAULT 0, created_at datetime(6) NOT NULL);
		CREATE TABLE django_q_ormq (id integer PRIMARY KEY, "key" varchar(100) NOT NULL, payload text NOT NULL, "lock" datetime NULL);`)
	for table, words := range map[string][]string{
		"Things":                       {`the table Things cannot be adopted: it has no primary key`, "ALTER TABLE `main`.`Things` ADD PRIMARY KEY"},
		"maybe":                        {"no unique key of columns that are never NULL"},
		"above":                        {"it is a view, and only a table's rows can be locked"},
		"THINGS":                       {"there is no such table", "there is Things"},
		"a.b":                          {"there is no schema a"},
		"solid_queue_ready_executions": {"it is one of Solid Queue's tables", "a sidecar changes rows of one table"},
		"django_q_ormq":                {"Its column lock has a time in every row", "leave this table to its own workers"},
		"nothing":                      {"there is no such table: check its spelling"},
	} {
		output := kit.RunCLI(t, s.Dir, nil, "adopt", "--database", s.URL, table)
		if output.WantError(t, 1, words...); output.Stdout != "" {
			t.Errorf("%s: it printed %s", table, output.Stdout)
		}
	}
	kit.RunCLI(t, s.Dir, nil, "adopt", "Things").WantError(t, 2, "which database?", "QSIDECAR_DATABASE")
	kit.RunCLI(t, s.Dir, nil, "adopt", "--database", s.URL).WantError(t, 2, "takes one table")
	kit.RunCLI(t, s.Dir, nil, "adopt", "--database", s.URL, `"a`).WantError(t, 2, "a quote is not closed")
	kit.RunCLI(t, s.Dir, nil, "adopt", "--database", "postgres://u:secret@h/d", "t").WantError(t, 2, "seen by every user of this host")
	kit.RunCLI(t, s.Dir, nil, "adopt", "--database", "sqlite:"+s.Dir+"/none.db", "t").WantError(t, 1, "none.db")
}

// run proposes a config for each table, compares it with its golden file, runs check on it, and
// serves a job with it.
func (p proposals) run(t *testing.T, database func(t testing.TB) string) {
	t.Parallel()
	for _, c := range p.all {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, p.engine, database(t))
		})
	}
}

// atSite matches what differs between runs: the server and the test's database.
var atSite = regexp.MustCompile(`(?m)^  main:  # .*\n    url: .*$|\bt[0-9]+_[0-9]+\b|MariaDB [0-9]\S*`)

// passwordFile is the file that adopt names if the URL has a password.
const passwordFile = "/run/secrets/qsidecar-database"

func (p proposed) run(t *testing.T, engine, at string) {
	s := kit.NewSite(t)
	s.URL = at
	db := databases.Owners(t, at)
	db.Script(p.ddl)
	url := filepath.Join(s.Dir, "url")
	if err := os.WriteFile(url, []byte(at+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	output := kit.RunCLI(t, s.Dir, nil, "adopt", "--database", "@"+url, p.table)
	if output.Code != 0 || output.Stderr != "" {
		t.Fatalf("adopt exits with %d and prints %s", output.Code, output.Stderr)
	}
	golden := filepath.Join("testdata", "adopt", engine+"-"+p.name+".yaml")
	got := atSite.ReplaceAllStringFunc(output.Stdout, func(found string) string {
		switch found[0] {
		case 't':
			return "DATABASE"
		case 'M':
			return "MariaDB"
		}
		return "  main:\n    url: URL"
	})
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
	config := output.Stdout
	if u, err := neturl.Parse(at); err != nil {
		t.Fatal(err)
	} else if password, has := u.User.Password(); has {
		secret := filepath.Join(s.Dir, "secret")
		if err := os.WriteFile(secret, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(config, password) || strings.Count(config, passwordFile) != 1 {
			t.Errorf("the password is in it, or no place for it:\n%s", config)
		}
		config = strings.Replace(config, passwordFile, secret, 1)
	}
	sc := s.Sidecar("proposed")
	if err := os.WriteFile(sc.ConfigFile, []byte(config+"\nlisten: [{socket: "+sc.Socket+"}]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if p.job == "" {
		if output := sc.Check(s.Dir, 1, "--json").Problems(t, "error"); !strings.Contains(output["table"], p.lacks) || strings.Count(output["table"], "\n") != 1 {
			t.Errorf("check reports %v, want %s", output, p.lacks)
		}
		return
	}
	sc.Check(s.Dir, 0)
	sc.Start()
	w := sc.Dial()
	job := w.ClaimOne(p.queue)
	if w.Must(kit.Msg{"op": "ack", "lease": job.Lease}); job.ID != p.job {
		t.Errorf("claimed %+v, want the job %s", job, p.job)
	}
}
