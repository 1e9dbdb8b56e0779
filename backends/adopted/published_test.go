package adopted_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/guess"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// ofLaravel is Laravel's table as its migration makes it (Laravel 11 to 13).
func ofLaravel(product string) string {
	switch product {
	case "PostgreSQL":
		return `create table "jobs" ("id" bigserial not null primary key, "queue" varchar(255) not null, "payload" text not null, "attempts" smallint not null,
			"reserved_at" integer null, "available_at" integer not null, "created_at" integer not null); create index "jobs_queue_index" on "jobs" ("queue");`
	case "SQLite":
		return `create table "jobs" ("id" integer primary key autoincrement not null, "queue" varchar not null, "payload" text not null, "attempts" integer not null,
			"reserved_at" integer, "available_at" integer not null, "created_at" integer not null); create index "jobs_queue_index" on "jobs" ("queue");`
	}
	return "create table `jobs` (`id` bigint unsigned not null auto_increment primary key, `queue` varchar(255) not null, `payload` longtext not null, `attempts` tinyint unsigned not null, " +
		"`reserved_at` int unsigned null, `available_at` int unsigned not null, `created_at` int unsigned not null) default character set utf8mb4 collate 'utf8mb4_unicode_ci'; " +
		"alter table `jobs` add index `jobs_queue_index`(`queue`);"
}

// ofDelayedJob is Delayed Job's table, as Rails 7 and later create it from its migration.
func ofDelayedJob(product string) string {
	switch product {
	case "PostgreSQL":
		return `CREATE TABLE "delayed_jobs" ("id" bigserial primary key, "priority" integer DEFAULT 0 NOT NULL, "attempts" integer DEFAULT 0 NOT NULL, "handler" text NOT NULL, "last_error" text,
			"run_at" timestamp(6), "locked_at" timestamp(6), "failed_at" timestamp(6), "locked_by" character varying, "queue" character varying, "created_at" timestamp(6), "updated_at" timestamp(6));
			CREATE INDEX "delayed_jobs_priority" ON "delayed_jobs" ("priority", "run_at");`
	case "SQLite":
		return `CREATE TABLE "delayed_jobs" ("id" integer PRIMARY KEY AUTOINCREMENT NOT NULL, "priority" integer DEFAULT 0 NOT NULL, "attempts" integer DEFAULT 0 NOT NULL, "handler" text NOT NULL,
			"last_error" text, "run_at" datetime(6), "locked_at" datetime(6), "failed_at" datetime(6), "locked_by" varchar, "queue" varchar, "created_at" datetime(6), "updated_at" datetime(6));
			CREATE INDEX "delayed_jobs_priority" ON "delayed_jobs" ("priority", "run_at");`
	}
	return "CREATE TABLE `delayed_jobs` (`id` bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, `priority` int DEFAULT 0 NOT NULL, `attempts` int DEFAULT 0 NOT NULL, `handler` text NOT NULL, `last_error` text, " +
		"`run_at` datetime(6), `locked_at` datetime(6), `failed_at` datetime(6), `locked_by` varchar(255), `queue` varchar(255), `created_at` datetime(6), `updated_at` datetime(6), " +
		"INDEX `delayed_jobs_priority` (`priority`, `run_at`));"
}

// utc is the present in UTC as Rails writes it, plus that many seconds.
func utc(product string, seconds int) string {
	switch product {
	case "PostgreSQL":
		return fmt.Sprintf("(now() AT TIME ZONE 'UTC' + %d * interval '1 second')", seconds)
	case "SQLite":
		return fmt.Sprintf("strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '%d seconds')", seconds)
	}
	return fmt.Sprintf("(utc_timestamp(6) + INTERVAL %d SECOND)", seconds)
}

// adopts maps the queue q to a table as `qsidecar adopt` proposes it.
func (k *kit) adopts(table string, want string) *guess.Proposal {
	k.Helper()
	p, err := guess.Table(k.Context(), k.Engine, "", table)
	if err != nil {
		k.Fatal(err)
	}
	if got := summary(p); got != want {
		k.Errorf("it proposes %s\nwant        %s", got, want)
	}
	if k.Store, err = adopted.New(k.Context(), k.Engine, map[string]mapping.Table{"q": p.Table}); err != nil {
		k.Fatal(err)
	}
	return p
}

// claimWith is claim, with a limit of attempts and a back-off.
func (k *kit) claimWith(n, limit int, backoff time.Duration) []backends.Job {
	k.Helper()
	c := backends.Claim{Queues: []backends.Policy{{Queue: "q", MaxAttempts: limit, Backoff: backoff, BackoffMax: backoff}}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}
	for range n {
		c.Slots = append(c.Slots, k.slot(0))
	}
	return k.commit(backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}}).Claims[0].Jobs
}

func idsOf(jobs []backends.Job) string {
	var all []string
	for _, j := range jobs {
		all = append(all, fmt.Sprint(j.ID, "/", j.Attempt))
	}
	return strings.Join(all, " ")
}

// TestLaravel runs on Laravel's table, with the config that is proposed for it.
func TestLaravel(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		now := epoch(product)
		insert := func(queue string, attempts int, reserved, available string) string {
			return fmt.Sprintf("insert into jobs (queue, attempts, reserved_at, available_at, created_at, payload) values ('%s', %d, %s, %s, %s, '{\"uuid\": \"x\", \"job\": \"Illuminate\"}');",
				queue, attempts, reserved, available, now)
		}
		k := start(ofLaravel(product)+insert("default", 0, "null", now)+insert("default", 1, now, now)+insert("default", 0, "null", now+" + 3600")+
			insert("default", 0, "null", now)+insert("default", 2, "null", now+" - 10")+insert("mails", 0, "null", now), nil)
		p := k.adopts("jobs", "id:[id] payload:[payload] attempts:[attempts] run_at:[available_at] created_at:[created_at] claimed_at:[reserved_at] | map[] | delete | stuck_after"+
			map[bool]string{true: " notify"}[product == "PostgreSQL"]+" 1000")
		if !p.Table.Deliveries || p.Table.Where["queue"].Text != "default" {
			t.Errorf("%+v", p.Table)
		}
		jobs := k.claimWith(9, 3, time.Hour)
		if got := idsOf(jobs); got != "1/1 4/1 5/3" || !strings.Contains(string(jobs[0].Payload), "Illuminate") || time.Since(jobs[0].EnqueuedAt) > 30*time.Minute {
			t.Fatalf("claimed %s: %+v", got, jobs)
		}
		// Its own workers find none of these.
		mine := "SELECT concat_ws('|', id, attempts) FROM jobs WHERE queue = 'default' AND (reserved_at IS NULL AND available_at <= " + now + " OR reserved_at <= " + now + " - 90) ORDER BY id"
		k.wantRows(mine)
		k.wantRows("SELECT concat_ws('|', id, attempts) FROM jobs WHERE reserved_at BETWEEN "+now+" - 600 AND "+now+" ORDER BY id", "1|1", "2|1", "4|1", "5|3")
		k.write(backends.Ack{Leases: leases(jobs[0])}, 0)
		k.write(backends.Nack{Leases: leases(jobs[1]), Error: "again in an hour"}, 0)
		k.write(backends.Nack{Leases: leases(jobs[2]), Error: "no more"}, 0) // the third attempt
		k.wantRows("SELECT concat_ws('|', id, attempts, reserved_at, CASE WHEN available_at > "+now+" + 3000 THEN 'later' ELSE 'now' END) FROM jobs ORDER BY id",
			"2|1|"+k.text("SELECT concat_ws('', reserved_at) FROM jobs WHERE id = 2")+"|now", "3|0|later", "4|1|later", "5|3|now", "6|0|now")
		k.wantRows(mine, "5|3") // and they move it to failed_jobs, by its attempts
		if len(k.claimWith(9, 3, time.Hour)) > 0 {
			t.Error("a job is claimed before its time")
		}
		k.sql("UPDATE jobs SET available_at = " + now + " - 1 WHERE id = 4")
		again := k.claimWith(9, 3, time.Hour)
		if idsOf(again) != "4/2" {
			t.Fatalf("%+v", again)
		}
		k.write(backends.Release{Leases: leases(again...), Uncounted: true}, 0)
		k.wantRows(mine, "4|1", "5|3")
		k.sql("UPDATE jobs SET reserved_at = " + now + ", attempts = attempts + 1 WHERE id = 4") // as its own worker claims it
		k.write(backends.Ack{Leases: leases(again...)}, 1)
		k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: []byte(`{"job": 7}`)}, {Queue: "q", Delay: time.Hour}}}, 0)
		k.wantRows("SELECT concat_ws('|', queue, payload, attempts, reserved_at, CASE WHEN available_at > "+now+" + 3000 THEN 'later' ELSE 'now' END, created_at > "+now+" - 600) FROM jobs WHERE id > 6 ORDER BY id",
			`default|{"job": 7}|0|now|`+truthText(product), "default||0|later|"+truthText(product))
		k.command(backends.Command{Kind: backends.Retry, IDs: []string{"5"}}, 1)
		if jobs := k.claimWith(9, 3, time.Hour); idsOf(jobs) != "5/1 7/1" {
			t.Errorf("%s", idsOf(jobs))
		}
	})
}

// text is the only text that a query returns.
func (k *kit) text(query string) string {
	k.Helper()
	got, err := k.rows(query)
	if err != nil || len(got) != 1 {
		k.Fatalf("%s: %v, %v", query, got, err)
	}
	return got[0]
}

// truthText is how concat_ws writes true.
func truthText(product string) string {
	if product == "PostgreSQL" {
		return "t"
	}
	return "1"
}

// TestDelayedJob runs on Delayed Job's table, with the config that is proposed for it.
func TestDelayedJob(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		now := utc(product, 0)
		insert := func(priority int, run, locked, failed, by string) string {
			return fmt.Sprintf("INSERT INTO delayed_jobs (priority, attempts, handler, run_at, locked_at, failed_at, locked_by, created_at, updated_at) VALUES (%d, 0, '--- !ruby/object', %s, %s, %s, %s, %s, %[6]s);",
				priority, run, locked, failed, by, now)
		}
		past := utc(product, -10)
		k := start(ofDelayedJob(product)+insert(10, past, "NULL", "NULL", "NULL")+insert(0, past, now, "NULL", "'host:x pid:1'")+insert(0, utc(product, 3600), "NULL", "NULL", "NULL")+
			insert(0, past, now, now, "'host:x pid:1'")+insert(-5, past, "NULL", "NULL", "NULL")+insert(0, utc(product, -20), "NULL", "NULL", "NULL"), nil)
		want := "id:[id] payload:[handler] attempts:[attempts] priority:[priority] run_at:[run_at] worker:[locked_by] error:[last_error] created_at:[created_at] claimed_at:[locked_at] failed_at:[failed_at] | map[] | delete | where.queue stuck_after"
		if product == "PostgreSQL" {
			want += " notify"
		}
		p := k.adopts("delayed_jobs", want+" columns")
		if p.Table.Deliveries || p.Table.MaxAttempts != 25 || p.Table.UTC != (product != "SQLite") || fmt.Sprint(p.Table.Order) != "[{priority false} {run_at false} {id false}]" {
			t.Errorf("%+v", p.Table)
		}
		jobs := k.claimWith(9, 2, time.Hour)
		if idsOf(jobs) != "5/1 6/1 1/1" || string(jobs[0].Payload) != "--- !ruby/object" {
			t.Fatalf("%+v", jobs)
		}
		// Its own workers find none of these while they are locked.
		mine := "SELECT concat_ws('|', id, attempts) FROM delayed_jobs WHERE run_at <= " + now + " AND (locked_at IS NULL OR locked_at < " + utc(product, -14400) + ") AND failed_at IS NULL ORDER BY priority, run_at"
		k.wantRows(mine)
		k.peek(backends.Peek{State: backends.StateClaimed, Max: 9}, "5:claimed:0 6:claimed:0 2:claimed:0 1:claimed:0 ")
		k.write(backends.Ack{Leases: leases(jobs[0])}, 0)
		k.write(backends.Nack{Leases: leases(jobs[1]), Error: "again in an hour"}, 0)
		k.write(backends.Nack{Leases: leases(jobs[2]), Error: "no more", Dead: true}, 0)
		k.wantRows("SELECT concat_ws('|', id, attempts, last_error, locked_by, CASE WHEN failed_at IS NULL THEN 'alive' ELSE 'failed' END, CASE WHEN locked_at IS NULL THEN 'free' ELSE 'locked' END, CASE WHEN run_at > "+
			utc(product, 3000)+" THEN 'later' ELSE 'now' END) FROM delayed_jobs ORDER BY id",
			"1|1|no more|failed|free|now", "2|0|host:x pid:1|alive|locked|now", "3|0|alive|free|later", "4|0|host:x pid:1|failed|locked|now", "6|1|again in an hour|alive|free|later")
		k.wantRows(mine)
		k.peek(backends.Peek{State: backends.StateDead, Max: 9}, "4:dead:0 1:dead:1 ")
		k.sql("UPDATE delayed_jobs SET run_at = " + past + " WHERE id = 6")
		last := k.claimWith(9, 2, time.Hour)
		if idsOf(last) != "6/2" {
			t.Fatalf("%+v", last)
		}
		k.write(backends.Nack{Leases: leases(last...), Error: "twice"}, 0)
		k.peek(backends.Peek{State: backends.StateDead, Max: 9}, "4:dead:0 6:dead:2 1:dead:1 ")
		k.command(backends.Command{Kind: backends.Retry, IDs: []string{"1"}}, 1)
		k.wantRows(mine, "1|0")
		k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: []byte("--- new"), Priority: 3}}}, 0)
		k.wantRows(mine, "7|0", "1|0")
		k.command(backends.Command{Kind: backends.Delete, IDs: []string{"7"}}, 1)
		if st, err := k.Stats(t.Context(), "q"); err != nil || st[0].Ready != 1 || st[0].Scheduled != 1 || st[0].Claimed != 1 || st[0].Dead != 2 {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

// TestTablesOfOtherKinds: tables of libraries that no queue can live in are refused with a reason.
func TestTablesOfOtherKinds(t *testing.T) {
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		at := zoneless(product)
		k := start(fmt.Sprintf(`CREATE TABLE solid_queue_jobs (id %[1]s, queue_name varchar(255) NOT NULL, class_name varchar(255) NOT NULL, arguments text, priority int DEFAULT 0 NOT NULL, active_job_id varchar(255),
				scheduled_at %[2]s, finished_at %[2]s, concurrency_key varchar(255), created_at %[2]s NOT NULL, updated_at %[2]s NOT NULL);
			CREATE TABLE solid_queue_ready_executions (id %[1]s, job_id bigint NOT NULL UNIQUE, queue_name varchar(255) NOT NULL, priority int DEFAULT 0 NOT NULL, created_at %[2]s NOT NULL);
			CREATE TABLE solid_queue_claimed_executions (id %[1]s, job_id bigint NOT NULL UNIQUE, process_id bigint, created_at %[2]s NOT NULL);
			CREATE TABLE solid_queue_failed_executions (id %[1]s, job_id bigint NOT NULL UNIQUE, error text, created_at %[2]s NOT NULL);
			CREATE TABLE solid_queue_scheduled_executions (id %[1]s, job_id bigint NOT NULL UNIQUE, queue_name varchar(255) NOT NULL, priority int DEFAULT 0 NOT NULL, scheduled_at %[2]s NOT NULL, created_at %[2]s NOT NULL);
			CREATE TABLE django_q_ormq (id %[1]s, %[3]s varchar(100) NOT NULL, payload text NOT NULL, %[4]s %[2]s NULL);`,
			serial(product), at, quoted(product, "key"), quoted(product, "lock")), nil)
		for table, words := range map[string]string{
			"solid_queue_jobs":                 "Solid Queue's tables. Solid Queue shows a job's state by rows in several tables",
			"solid_queue_ready_executions":     "Solid Queue's tables",
			"solid_queue_claimed_executions":   "Solid Queue's tables",
			"solid_queue_failed_executions":    "Solid Queue's tables",
			"solid_queue_scheduled_executions": "Solid Queue's tables",
			"django_q_ormq":                    "Its column lock has a time in every row, and a row is ready if that time is older than the cluster's setting `retry`",
		} {
			var cannot *guess.Unadoptable
			if _, err := guess.Table(t.Context(), k.Engine, "", table); !errors.As(err, &cannot) || !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v", table, err)
			}
		}
	})
}

func quoted(product, name string) string {
	if product == "PostgreSQL" || product == "SQLite" {
		return `"` + name + `"`
	}
	return "`" + name + "`"
}

// TestMarkedBesideAState: the state has no value for claimed rows, and another column is NULL in those
// that are not claimed.
func TestMarkedBesideAState(t *testing.T) {
	m := mapping.Table{
		Name: "marked", MaxAttempts: 3,
		Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"is_done"}},
		States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "false"}, backends.StateDone: {Text: "true"}},
		Token:   &mapping.Token{Column: "pid", From: 7, To: 7},
	}
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, "CREATE TABLE marked (id int PRIMARY KEY, is_done boolean NOT NULL DEFAULT false, pid int); INSERT INTO marked (id) VALUES (1), (2)",
			map[string]mapping.Table{"q": m})
		first := k.one("q")
		second := k.one("q")
		if first.ID != "1" || second.ID != "2" || len(k.claim("q", 2)) > 0 {
			t.Fatalf("%+v, %+v", first, second)
		}
		k.write(backends.Ack{Leases: leases(first)}, 0)
		k.wantRows("SELECT concat_ws('|', id, CASE WHEN is_done THEN 't' ELSE 'f' END, pid) FROM marked ORDER BY id", "1|t|7", "2|f|7")
		k.peek(backends.Peek{State: backends.StateClaimed, Max: 9}, "2:claimed:1 ")
		k.write(backends.Nack{Leases: leases(second), HasDelay: true}, 0)
		k.peek(backends.Peek{State: backends.StateReady, Max: 9}, "2:ready:1 ")
	})
}

// TestStuckWithoutAState: of rows that a time marks as claimed, only those are reset that are neither
// done nor dead.
func TestStuckWithoutAState(t *testing.T) {
	m := mapping.Table{
		Name: "marked", MaxAttempts: 3, StuckAfter: time.Hour, Unit: mapping.Seconds,
		Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"is_done"}, mapping.ClaimedAt: {"locked_at"}, mapping.FailedAt: {"failed_at"}},
		States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "false"}, backends.StateDone: {Text: "true"}},
	}
	onEvery(t, func(t *testing.T, product string, start func(ddl string, tables map[string]mapping.Table) *kit) {
		k := start("CREATE TABLE marked (id int PRIMARY KEY, is_done boolean NOT NULL DEFAULT false, locked_at int, failed_at int);"+
			"INSERT INTO marked VALUES (1, false, 5, NULL), (2, true, 5, NULL), (3, false, 5, 9), (4, false, NULL, 9), (5, true, NULL, NULL)", map[string]mapping.Table{"q": m})
		k.peek(backends.Peek{State: backends.StateClaimed, Max: 9}, "1:claimed:0 ")
		k.maintain(backends.Maintenance{Waiting: []string{"q"}})
		k.wantRows("SELECT concat_ws('|', id, CASE WHEN is_done THEN 't' ELSE 'f' END, coalesce(locked_at, 0), coalesce(failed_at, 0)) FROM marked ORDER BY id", "1|f|0|0", "2|t|5|0", "3|f|5|9", "4|f|0|9", "5|t|0|0")
		jobs := k.claimWith(9, 3, time.Hour)
		if idsOf(jobs) != "1/1" {
			t.Fatalf("claimed %s", idsOf(jobs))
		}
		// Its own consumer, or a cleaner, finishes the row that a worker has.
		k.sql("UPDATE marked SET is_done = true WHERE id = 1")
		k.write(backends.Nack{Leases: leases(jobs...), HasDelay: true}, 1)
		k.sql("INSERT INTO marked (id) VALUES (6), (7)")
		jobs = k.claimWith(9, 3, time.Hour)
		k.sql("UPDATE marked SET failed_at = 9 WHERE id > 5")
		k.write(backends.Ack{Leases: leases(jobs...)}, 2)
		k.wantRows("SELECT concat_ws('|', id, CASE WHEN is_done THEN 't' ELSE 'f' END) FROM marked WHERE id IN (1, 6, 7) ORDER BY id", "1|t", "6|f", "7|f")
		k.sql("DELETE FROM marked WHERE id IN (1, 6, 7)")
		k.peek(backends.Peek{State: backends.StateDone, Max: 9}, "2:done:0 5:done:0 ")
		k.peek(backends.Peek{State: backends.StateDead, Max: 9}, "3:dead:0 4:dead:0 ")
	})
}
