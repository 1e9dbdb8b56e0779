package adopted_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/guess"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// recorder is an engine that keeps the queries that it ran.
type recorder struct {
	backends.Engine
	all []*backends.Statement
}

func (r *recorder) Query(ctx context.Context, statements ...*backends.Statement) error {
	r.all = append(r.all, statements...)
	return r.Engine.Query(ctx, statements...)
}

// TestGuessIsCheap: a proposal reads rows from an index, in its order, so that its cost does not grow
// with the table. It still finds a rare state in the middle.
func TestGuessIsCheap(t *testing.T) {
	const ddl = "CREATE TABLE jobs (id int NOT NULL PRIMARY KEY, state varchar(9) NOT NULL, payload varchar(99) NOT NULL)"
	onEach(t, func(t *testing.T, on *product) {
		cheap(t, on.newKit(t, ddl, nil))
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		cheap(t, newSQLiteKit(t, ddl, nil))
	})
}

func cheap(t *testing.T, k *kit) {
	k.sql("CREATE INDEX states ON jobs (state)")
	for from := 0; from < 6_000; from += 2_000 {
		var rows []string
		for n := range 2_000 {
			state := []string{"done", "failed", "waiting"}[from/2_000]
			if from == 2_000 && n != 700 {
				state = "done"
			}
			rows = append(rows, fmt.Sprintf("(%d, '%s', 'x')", from+n, state))
		}
		k.sql("INSERT INTO jobs VALUES " + strings.Join(rows, ", "))
	}
	engine := &recorder{Engine: k.Store.Engine}
	p, err := guess.Table(t.Context(), engine, "", "jobs")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(p.Table.States); got != "map[dead:{failed false} done:{done false} ready:{waiting false}]" || p.Sampled != "1000 rows (the first and the last ones by its key)" {
		t.Errorf("it sampled %s and proposes %s", p.Sampled, got)
	}
	if len(engine.all) < 5 {
		t.Errorf("it ran %d queries", len(engine.all))
	}
	for _, st := range engine.all {
		plan, err := engine.Explain(t.Context(), st, p.Info)
		if err != nil {
			t.Fatal(err)
		}
		if plan.Index == "" || plan.Sorts || !strings.Contains(st.Text, " LIMIT ") {
			t.Errorf("%s\n%s", st.Text, strings.Join(plan.Lines, "\n"))
		}
	}
}

// TestGuesses checks what names, types, defaults and rows show, and what they do not.
func TestGuesses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ddl   string
		table string
		want  string // in short; see summary
	}{
		"times alone show nothing": {
			`CREATE TABLE t (id integer PRIMARY KEY, body text, processed_at datetime)`, "t",
			"id:[id] payload:[body] finished_at:[processed_at] | map[] | update | claim_mode",
		},
		"a truth": {
			`CREATE TABLE t (id integer PRIMARY KEY, args json, is_pending boolean NOT NULL DEFAULT true, retries int)`, "t",
			"id:[id] payload:[args] state:[is_pending] attempts:[retries] | map[done:{false false} ready:{true false}] | update | max_attempts claim_mode",
		},
		"words in any letters": {
			`CREATE TABLE t (a int, b text, JobStatus text DEFAULT 'NEW', Data text, LockedBy text, PRIMARY KEY (a, b)); INSERT INTO t VALUES (1, 'x', 'In-Progress', '', 'me'), (1, 'y', 'FAILED', '', NULL), (2, 'z', 'odd', '', NULL)`, "t",
			"id:[a b] payload:[Data] state:[JobStatus] worker:[LockedBy] | map[claimed:{In-Progress false} dead:{FAILED false} ready:{NEW false}] | update | states.done states",
		},
		"numbers with a gap": {
			`CREATE TABLE t (id integer PRIMARY KEY, status int, msg text); INSERT INTO t VALUES (1, 0, ''), (2, 10, ''), (3, 20, '')`, "t",
			"id:[id] payload:[msg] state:[status] | map[ready:{0 false}] | update | states.claimed states.done states.dead states claim_mode",
		},
		"dates from which a row counts": {
			`CREATE TABLE t (id integer PRIMARY KEY, state text NOT NULL DEFAULT 'new', Msg text, ActivateDate datetime)`, "t",
			"id:[id] payload:[Msg] state:[state] run_at:[ActivateDate] | map[ready:{new false}] | update | states.claimed states.done states.dead claim_mode",
		},
		"a date of effect": {
			`CREATE TABLE t (id integer PRIMARY KEY, state text NOT NULL DEFAULT 'new', Msg text, EffectiveDate datetime)`, "t",
			"id:[id] payload:[Msg] state:[state] run_at:[EffectiveDate] | map[ready:{new false}] | update | states.claimed states.done states.dead claim_mode",
		},
		"what rows have": {
			`CREATE TABLE t (id integer PRIMARY KEY, status text NOT NULL, msg text, last_error text, completed_at datetime, taken_by text);
			INSERT INTO t VALUES (1, 'zz', '', NULL, NULL, NULL), (2, 'yy', '', NULL, NULL, 'w'), (3, 'xx', '', NULL, '2026-01-01', 'w'), (4, 'ww', '', 'no', '2026-01-01', 'w')`, "t",
			"id:[id] payload:[msg] state:[status] worker:[taken_by] error:[last_error] finished_at:[completed_at] | map[claimed:{yy false} dead:{ww false} done:{xx false}] | update | states.ready states",
		},
		"no state, and a number": {
			`CREATE TABLE t (id integer PRIMARY KEY, consumer_id int, payload text); CREATE TABLE t_archive (id int, payload text)`, "t",
			"id:[id] payload:[payload] | map[] | archive | ",
		},
		"many values": {
			`CREATE TABLE t (id integer PRIMARY KEY, state int, payload text); WITH RECURSIVE d (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM d WHERE n < 40) INSERT INTO t SELECT n, n * 7, '' FROM d`, "t",
			"id:[id] payload:[payload] state:[state] | map[] | update | states states.ready states.claimed states.done states.dead states claim_mode",
		},
		"a date is no state": {
			`CREATE TABLE t (id integer PRIMARY KEY, payload text, status_date text, completed text, StatusAt text, phase int); INSERT INTO t VALUES (1, '', 'x', '2026-01-02 03:04:05', '', 1767323045)`, "t",
			"id:[id] payload:[payload] | map[] | update | claim_mode columns",
		},
		"a state of an address": {
			`CREATE TABLE t (id integer PRIMARY KEY, payload text, state varchar(2), stat varchar(9)); WITH RECURSIVE d (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM d WHERE n < 40)
			INSERT INTO t SELECT n, '', char(64 + n % 26, 65 + n), 'new' FROM d`, "t",
			"id:[id] payload:[payload] state:[stat] | map[ready:{new false}] | update | states.claimed states.done states.dead claim_mode columns",
		},
		"a CHECK outweighs a name": {
			`CREATE TABLE t (id integer PRIMARY KEY, payload text, state varchar(2), progress text NOT NULL DEFAULT 'queued' CHECK (progress IN ('queued', 'running', 'ok', 'failed')))`, "t",
			"id:[id] payload:[payload] state:[progress] | map[claimed:{running false} dead:{failed false} done:{ok false} ready:{queued false}] | update | columns",
		},
		"short names": {
			`CREATE TABLE t (id integer PRIMARY KEY, stat text DEFAULT 'new', due datetime, err text, retry_cnt int, start_dt datetime, server_name text, body text)`, "t",
			"id:[id] payload:[body] state:[stat] attempts:[retry_cnt] run_at:[due] worker:[server_name] error:[err] claimed_at:[start_dt] | map[ready:{new false}] | update | states.claimed states.done max_attempts claim_mode",
		},
		"long names": {
			`CREATE TABLE t (id integer PRIMARY KEY, status text DEFAULT 'new', available_at datetime, reserved_at datetime, err_msg text, body text, message text, last_message text)`, "t",
			"id:[id] payload:[message] state:[status] run_at:[available_at] error:[err_msg] claimed_at:[reserved_at] | map[ready:{new false}] | update | states.claimed states.done states.dead claim_mode columns",
		},
		"only a truth": {
			`CREATE TABLE t (id integer PRIMARY KEY, command text, is_done boolean NOT NULL DEFAULT false)`, "t",
			"id:[id] payload:[command] state:[is_done] | map[done:{true false} ready:{false false}] | update | claim_mode",
		},
		"a limit of each row": {
			`CREATE TABLE t (id integer PRIMARY KEY, state text DEFAULT 'new' CHECK (state IN ('new', 'running', 'done')), args json, attempt int NOT NULL DEFAULT 0, max_attempts int NOT NULL DEFAULT 20)`, "t",
			"id:[id] payload:[args] state:[state] attempts:[attempt] max_attempts:[max_attempts] | map[claimed:{running false} done:{done false} ready:{new false}] | update | ",
		},
		"a limit that may be NULL": {
			`CREATE TABLE t (id integer PRIMARY KEY, state text DEFAULT 'new' CHECK (state IN ('new', 'running', 'done')), args json, retries int, max_retries int)`, "t",
			"id:[id] payload:[args] state:[state] attempts:[retries] max_attempts:[max_retries] | map[claimed:{running false} done:{done false} ready:{new false}] | update | max_attempts",
		},
		"milliseconds": {
			`CREATE TABLE t (id integer PRIMARY KEY, state text DEFAULT 'new', body text, created_at bigint, claimed_at bigint, run_at bigint, small_at int, failed int); INSERT INTO t VALUES (1, 'new', '', 1767323045000, NULL, 1767323045000, 7, 2)`, "t",
			"id:[id] payload:[body] state:[state] attempts:[failed] run_at:[run_at] created_at:[created_at] claimed_at:[claimed_at] | map[ready:{new false}] | update | states.claimed states.done claim_mode columns 1",
		},
		"numbers, and no rows": {
			`CREATE TABLE t (id integer PRIMARY KEY, state text DEFAULT 'new', body text, created_at integer, available_at integer)`, "t",
			"id:[id] payload:[body] state:[state] run_at:[available_at] created_at:[created_at] | map[ready:{new false}] | update | states.claimed states.done states.dead claim_mode 1000",
		},
		"both units": {
			`CREATE TABLE t (id integer PRIMARY KEY, state text DEFAULT 'new', body text, created_at bigint, run_at bigint); INSERT INTO t VALUES (1, 'new', '', 1767323045000, 1767323045)`, "t",
			"id:[id] payload:[body] state:[state] run_at:[run_at] | map[ready:{new false}] | update | states.claimed states.done states.dead claim_mode columns.created_at 1000",
		},
		"times in texts": {
			`CREATE TABLE t (id integer PRIMARY KEY, state text DEFAULT 'new', body text, created_at text, claimed_at text, run_at text); INSERT INTO t VALUES (1, 'new', '', '2026-01-02T03:04:05Z', NULL, 'tomorrow')`, "t",
			"id:[id] payload:[body] state:[state] created_at:[created_at] claimed_at:[claimed_at] | map[ready:{new false}] | update | states.claimed states.done states.dead claim_mode columns",
		},
		"a claim that shows, and a truth": {
			`CREATE TABLE t (id integer PRIMARY KEY, is_done boolean NOT NULL DEFAULT false, body text, locked_at datetime)`, "t",
			"id:[id] payload:[body] state:[is_done] claimed_at:[locked_at] | map[done:{true false} ready:{false false}] | update | stuck_after",
		},
		"a start that may stay": {
			`CREATE TABLE t (id integer PRIMARY KEY, body text, started_at datetime)`, "t",
			"id:[id] payload:[body] | map[] | update | columns.claimed_at claim_mode",
		},
		"a claim, and an end": {
			`CREATE TABLE t (id integer PRIMARY KEY, body text, locked_at datetime, finished_at datetime)`, "t",
			"id:[id] payload:[body] claimed_at:[locked_at] finished_at:[finished_at] | map[] | update | on_ack stuck_after",
		},
		"a claim, and a number that can be the state": {
			`CREATE TABLE t (id integer PRIMARY KEY, flag tinyint NOT NULL DEFAULT 0, body text, locked_at datetime)`, "t",
			"id:[id] payload:[body] claimed_at:[locked_at] | map[] | update | on_ack stuck_after columns",
		},
		"nothing": {`CREATE TABLE t (a text NOT NULL UNIQUE)`, "t", "id:[a] | map[] | update | columns.payload claim_mode"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newSQLiteKit(t, c.ddl, nil)
			p, err := guess.Table(t.Context(), k.Store.Engine, "", c.table)
			if err != nil {
				t.Fatal(err)
			}
			if got := summary(p); got != c.want {
				t.Errorf("it proposes %s\nwant        %s", got, c.want)
			}
		})
	}
}

// summary is the proposal's columns, states, what an ack does, and the keys that it leaves open.
func summary(p *guess.Proposal) string {
	var all []string
	for _, role := range mapping.Roles {
		if names := p.Table.Columns[role]; len(names) > 0 {
			all = append(all, fmt.Sprintf("%s:%v", role, names))
		}
	}
	states := map[backends.State]string{}
	for s, v := range p.Table.States {
		states[s] = fmt.Sprintf("{%s %v}", v.Text, v.Null)
	}
	var open []string
	for _, h := range p.Hints {
		open = append(open, h.Key)
	}
	if p.Table.Unit > 0 {
		open = append(open, fmt.Sprint(p.Table.Unit))
	}
	return strings.Join(all, " ") + " | " + fmt.Sprint(states) + " | " + []string{"update", "delete", "archive"}[p.Table.OnAck] + " | " + strings.Join(open, " ")
}
