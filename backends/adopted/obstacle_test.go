package adopted_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// obstacleKit has two adopted tables of the same form. A waiting row of the table a must not have the text of another
// waiting one: a generated column and a unique index see to that, as an owner's deduplication does.
func obstacleKit(t *testing.T, on *product, change func(m *mapping.Table)) *kit {
	t.Helper()
	var ddl strings.Builder
	tables := map[string]mapping.Table{}
	kind := "varchar(20)"
	if on.name == "SQLite" {
		kind = "text"
	}
	for _, name := range []string{"a", "b"} {
		waiting := "CASE WHEN state = 'waiting' THEN dedupe END"
		fmt.Fprintf(&ddl, `CREATE TABLE %s (id int PRIMARY KEY, dedupe %[2]s, state %[2]s NOT NULL, since %[3]s, body %[2]s, tries int NOT NULL DEFAULT 0,
			only_one %[2]s GENERATED ALWAYS AS (%[4]s) STORED, CONSTRAINT %[1]s_tries CHECK (tries < 3)); CREATE UNIQUE INDEX %[1]s_only_one ON %[1]s (only_one);`, name, kind, on.zoneless, waiting)
		m := mapping.Table{
			Name:    name,
			Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Payload: {"body"}, mapping.ClaimedAt: {"since"}},
			States: map[backends.State]mapping.Value{
				backends.StateReady: {Text: "waiting"}, backends.StateClaimed: {Text: "running"}, backends.StateDone: {Text: "done"},
			},
		}
		if change != nil {
			change(&m)
		}
		tables[name] = m
	}
	return on.newKit(t, ddl.String(), tables)
}

// onEachEngine is onEach, and SQLite.
func onEachEngine(t *testing.T, f func(t *testing.T, on *product)) {
	onEach(t, f)
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		f(t, &product{name: "SQLite", newKit: newSQLiteKit, zoneless: "datetime"})
	})
}

// insert stores waiting rows from one id to another, each with its own text.
func (k *kit) insert(table string, from, to int, state string) {
	k.Helper()
	var rows []string
	for id := from; id <= to; id++ {
		rows = append(rows, fmt.Sprintf("(%d, 'k%[1]d', '%s')", id, state))
	}
	k.sql(fmt.Sprintf("INSERT INTO %s (id, dedupe, state) VALUES %s", table, strings.Join(rows, ", ")))
}

// obstacles are the obstacles as texts. Each error must have the word in it.
func (k *kit) obstacles(word string) (all []string) {
	k.Helper()
	for _, o := range k.Obstacles() {
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", o.Doing, o.Queue, o.Table, o.Job)))
		if !strings.Contains(o.Err.Error(), word) {
			k.Errorf("the obstacle %+v doesn't name %q", o, word)
		}
	}
	return all
}

// lost is a sidecar that dies in the tests.
const lost backends.Identity = 7

// loses makes the lost sidecar claim so many jobs of each queue, and die.
func (k *kit) loses(on *product, n map[string]int) {
	k.Helper()
	k.heartbeat(lost, backends.HeartbeatJoin, sidecarTimeout)
	for queue, n := range n {
		c := backends.Claim{Queues: []backends.Policy{policy(queue)}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}
		for range n {
			slot := k.slot(0)
			slot.Token.Sidecar = lost
			c.Slots = append(c.Slots, slot)
		}
		if jobs := k.commit(backends.CommitContent{Sidecar: lost, Claims: []backends.Claim{c}}).Claims[0].Jobs; len(jobs) != n {
			k.Fatalf("%d jobs of %s", len(jobs), queue)
		}
	}
	dead := map[bool]string{true: "true", false: "1"}[on.name == "PostgreSQL"]
	k.sql("UPDATE " + on.own + "qsidecar_sidecars SET dead = " + dead + " WHERE sidecar = 7")
}

// obstacleClock replaces the clock of the obstacles. The result moves it.
func (k *kit) obstacleClock() (forward func(d time.Duration)) {
	clock := time.Now()
	k.ObstacleSet().Now = func() time.Time { return clock }
	return func(d time.Duration) { clock = clock.Add(d) }
}

// TestRowThatCannotBeGivenBack: a job that the database refuses to give back stays claimed. All others are given back
// in the same call, and the refused one when nothing is in its way any more.
func TestRowThatCannotBeGivenBack(t *testing.T) {
	onEachEngine(t, func(t *testing.T, on *product) {
		k := obstacleKit(t, on, nil)
		forward := k.obstacleClock()
		k.insert("a", 1, 5, "waiting")
		k.insert("b", 1, 2, "waiting")
		k.loses(on, map[string]int{"a": 5, "b": 2})
		k.sql("INSERT INTO a (id, dedupe, state) VALUES (12, 'k2', 'waiting'), (14, 'k4', 'waiting')")
		r := k.maintain(backends.Maintenance{})
		if r.Reaped[backends.CauseSidecarLost] != 5 || len(r.MadeReady) != 2 {
			t.Errorf("%+v", r)
		}
		if got := k.obstacles("only_one"); fmt.Sprint(got) != "[give back a a 2 give back a a 4]" {
			t.Errorf("obstacles: %q", got)
		}
		k.wantRows("SELECT concat_ws('|', id, state) FROM a ORDER BY id", "1|waiting", "2|running", "3|waiting", "4|running", "5|waiting", "12|waiting", "14|waiting")

		k.sql("DELETE FROM a WHERE id = 12")
		if r := k.maintain(backends.Maintenance{}); len(r.Reaped) != 0 || r.Next == 0 || r.More {
			t.Errorf("before its time: %+v", r)
		}
		forward(time.Minute)
		if r := k.maintain(backends.Maintenance{}); r.Reaped[backends.CauseSidecarLost] != 1 {
			t.Errorf("with nothing in the way of one: %+v", r)
		}
		k.sql("DELETE FROM a WHERE id = 4")
		forward(10 * time.Minute)
		k.maintain(backends.Maintenance{})
		if got := k.obstacles(""); len(got) != 0 {
			t.Errorf("obstacles are left: %q", got)
		}
	})
}

// TestManyRowsThatCannotBeGivenBack: more refused rows than a batch has don't hide the others.
func TestManyRowsThatCannotBeGivenBack(t *testing.T) {
	onEachEngine(t, func(t *testing.T, on *product) {
		k := obstacleKit(t, on, nil)
		forward := k.obstacleClock()
		const bad = 70
		k.insert("a", 1, bad+5, "waiting")
		k.loses(on, map[string]int{"a": bad + 5})
		k.sql(fmt.Sprintf("INSERT INTO a (id, dedupe, state) SELECT id + 1000, dedupe, 'waiting' FROM a WHERE id <= %d", bad))
		var reaped, calls int
		for more := true; more && calls < 50; calls++ {
			r, err := k.Maintain(t.Context(), backends.Maintenance{Limit: 20})
			if err != nil {
				t.Fatal(err)
			}
			reaped += r.Reaped[backends.CauseSidecarLost]
			more = r.More
		}
		if all := k.Obstacles(); reaped != 5 || len(all) != bad {
			t.Errorf("%d claims were taken back, and %d obstacles found, in %d calls", reaped, len(all), calls)
		}
		k.sql("DELETE FROM a WHERE id > 1000")
		for range 10 { // each call tries some of them
			forward(10 * time.Minute)
			k.maintain(backends.Maintenance{})
		}
		k.wantRows("SELECT concat('', count(*)) FROM a WHERE state = 'running'", "0")
		if all := k.Obstacles(); len(all) != 0 {
			t.Errorf("%d obstacles are left", len(all))
		}
	})
}

// TestKindsOfObstacles: whatever keeps one row from being given back, it keeps no other one.
func TestKindsOfObstacles(t *testing.T) {
	postgres := "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN %s; RETURN new; END $$; CREATE TRIGGER refuse BEFORE UPDATE ON a FOR EACH ROW EXECUTE FUNCTION refuse()"
	for name, in := range map[string]struct{ postgres, mysql, sqlite, word string }{
		"trigger": {
			fmt.Sprintf(postgres, "IF new.id = 2 THEN RAISE 'no way back'; END IF"),
			"CREATE TRIGGER refuse BEFORE UPDATE ON a FOR EACH ROW BEGIN IF new.id = 2 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no way back'; END IF; END",
			"CREATE TRIGGER refuse BEFORE UPDATE ON a FOR EACH ROW WHEN new.id = 2 BEGIN SELECT RAISE(ABORT, 'no way back'); END", "no way back",
		},
		"trigger with a bug": {
			fmt.Sprintf(postgres, "IF new.id = 2 THEN PERFORM * FROM nowhere; END IF"),
			"CREATE TRIGGER refuse BEFORE UPDATE ON a FOR EACH ROW BEGIN IF new.id = 2 THEN INSERT INTO nowhere VALUES (1); END IF; END",
			"", "nowhere",
		},
		"trigger with a conflict": {
			fmt.Sprintf(postgres, "IF new.id = 2 THEN RAISE 'no way back' USING ERRCODE = '40001'; END IF"),
			"CREATE TRIGGER refuse BEFORE UPDATE ON a FOR EACH ROW BEGIN IF new.id = 2 THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'no way back'; END IF; END",
			"", "no way back",
		},
		"counter": {"", "", "", "tries"},
	} {
		t.Run(name, func(t *testing.T) {
			onEachEngine(t, func(t *testing.T, on *product) {
				ddl := in.mysql
				switch on.name {
				case "PostgreSQL":
					ddl = in.postgres
				case "SQLite":
					ddl = in.sqlite
				}
				if ddl == "" && name != "counter" {
					return // the engine has no such trigger
				}
				k := obstacleKit(t, on, func(m *mapping.Table) {
					if name == "counter" {
						m.Columns[mapping.Attempts] = []string{"tries"}
					}
				})
				k.insert("a", 1, 3, "waiting")
				k.insert("b", 1, 1, "waiting")
				if name == "counter" {
					k.sql("UPDATE a SET tries = 2 WHERE id = 2")
				}
				k.loses(on, map[string]int{"a": 3, "b": 1})
				if ddl != "" {
					k.sql(ddl)
				}
				r := k.maintain(backends.Maintenance{})
				if got := k.obstacles(in.word); r.Reaped[backends.CauseSidecarLost] != 3 || fmt.Sprint(got) != "[give back a a 2]" {
					t.Errorf("%+v, obstacles: %q", r, got)
				}
			})
		})
	}
}

// TestStuckRowThatCannotBeReset: stuck_after resets the other rows.
func TestStuckRowThatCannotBeReset(t *testing.T) {
	onEachEngine(t, func(t *testing.T, on *product) {
		k := obstacleKit(t, on, func(m *mapping.Table) { m.StuckAfter = time.Hour })
		forward := k.obstacleClock()
		k.insert("a", 1, 3, "running")
		k.insert("b", 1, 1, "running")
		k.sql("UPDATE a SET since = '2001-01-01 00:00:00'; UPDATE b SET since = '2001-01-01 00:00:00'; INSERT INTO a (id, dedupe, state) VALUES (12, 'k2', 'waiting')")
		r := k.maintain(backends.Maintenance{})
		if got := k.obstacles("only_one"); len(r.MadeReady) != 2 || fmt.Sprint(got) != "[reset a a 2]" {
			t.Errorf("%+v, obstacles: %q", r, got)
		}
		k.wantRows("SELECT concat_ws('|', id, state) FROM a ORDER BY id", "1|waiting", "2|running", "3|waiting", "12|waiting")
		k.sql("DELETE FROM a WHERE id = 12")
		forward(time.Minute)
		k.maintain(backends.Maintenance{})
		k.wantRows("SELECT concat_ws('|', id, state) FROM a ORDER BY id", "1|waiting", "2|waiting", "3|waiting")
		if got := k.obstacles(""); len(got) != 0 {
			t.Errorf("obstacles are left: %q", got)
		}
	})
}

// TestTableThatIsGone: the maintenance of another queue goes on, and the table's begins again when it is back.
func TestTableThatIsGone(t *testing.T) {
	onEachEngine(t, func(t *testing.T, on *product) {
		k := obstacleKit(t, on, func(m *mapping.Table) { m.StuckAfter = time.Hour })
		forward := k.obstacleClock()
		k.insert("a", 1, 3, "waiting")
		k.insert("b", 1, 2, "waiting")
		k.loses(on, map[string]int{"a": 2, "b": 1})
		k.sql("ALTER TABLE a RENAME TO gone")
		all := backends.Maintenance{Waiting: []string{"a", "b"}, Prune: true}
		r := k.maintain(all)
		if r.Reaped[backends.CauseSidecarLost] != 1 || fmt.Sprint(r.Ready, r.MadeReady) != "[b] [b]" {
			t.Errorf("without the table: %+v", r)
		}
		if got := k.obstacles(""); fmt.Sprint(got) != "[claim a a give back a a reset a a]" {
			t.Errorf("obstacles: %q", got)
		}
		k.sql("ALTER TABLE gone RENAME TO a")
		forward(time.Minute)
		r = k.maintain(all)
		if got := k.obstacles(""); r.Reaped[backends.CauseSidecarLost] != 2 || fmt.Sprint(r.Ready) != "[b a]" || fmt.Sprint(got) != "[claim a a]" {
			t.Errorf("with the table: %+v, obstacles: %q", r, got)
		}
		if jobs, got := k.claim("a", 1), k.obstacles(""); len(jobs) != 1 || len(got) != 0 {
			t.Errorf("%d jobs, obstacles after the claim: %q", len(jobs), got)
		}
	})
}

// TestCheckFindsJobsNotGivenBack: qsidecar check finds them without a sidecar's memory.
func TestCheckFindsJobsNotGivenBack(t *testing.T) {
	onEachEngine(t, func(t *testing.T, on *product) {
		k := obstacleKit(t, on, nil)
		k.insert("a", 1, 4, "waiting")
		k.insert("b", 1, 2, "waiting")
		k.commit(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "managed"}, {Queue: "managed", Delay: time.Hour}, {Queue: "managed"}}}}})
		k.loses(on, map[string]int{"a": 4, "b": 2, "managed": 1})
		found := func() (texts []string) {
			all, err := k.Examine(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range all {
				if f.Topic == "maintenance" && f.Severity == backends.SeverityWarning {
					texts = append(texts, f.Text)
				}
			}
			return texts
		}
		if got := found(); len(got) != 0 {
			t.Errorf("of claims that ended in this moment: %q", got)
		}
		k.sql("UPDATE " + on.own + "qsidecar_leases SET claimed_at = claimed_at - 100000 WHERE queue = 'a'")
		ago := "UTC_TIMESTAMP() - INTERVAL 2 MINUTE"
		switch on.name {
		case "PostgreSQL":
			ago = "now() - interval '2 min'"
		case "SQLite":
			ago = fmt.Sprint(time.Now().Add(-2 * time.Minute).UnixMilli())
		}
		k.sql(fmt.Sprintf("UPDATE %sqsidecar_jobs SET claimed_at = %s WHERE claimed_at IS NOT NULL", on.own, ago))
		k.sql(fmt.Sprintf("UPDATE %sqsidecar_jobs SET run_at = %s WHERE state = 'scheduled'", on.own, ago))
		got := found()
		if len(got) != 3 || !strings.Contains(got[0], "the queue managed has 1 jobs that are still claimed") || !strings.Contains(got[1], "the queue managed has 1 jobs that are still scheduled") {
			t.Fatalf("found %q", got)
		}
		if got = got[2:]; !strings.Contains(got[0], "queues.a: 4 jobs") || !strings.Contains(got[0], "minute ago (") {
			t.Errorf("found %q", got)
		}
	})
}
