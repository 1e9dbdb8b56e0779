package adopted_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// old is a row that was finished that many minutes ago; state is in quotes.
func old(table, state, minutes string) string {
	return "INSERT INTO " + table + " (state, parameters, user_id, finished_dt) VALUES (" + state + ", '{}', 7, current_timestamp - interval '" + minutes + "' minute)"
}

// pruned runs maintenance until nothing is left to prune, and returns the number of pruned rows.
func (k *kit) pruned() (n int) {
	k.Helper()
	for {
		r := k.maintain(backends.Maintenance{Prune: true})
		if n += r.Pruned; !r.PruneMore {
			return n
		}
	}
}

// TestKeep: finished rows are deleted after their queue's own retention, and no others.
func TestKeep(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		m := tableE()
		m.Where = map[string]mapping.Value{"user_id": {Text: "7"}}
		rows := []string{
			old("my_queue", "'done'", "61"), old("my_queue", "'done'", "40"), old("my_queue", "'error'", "100"), old("my_queue", "'error'", "121"),
			old("my_queue", "'waiting'", "999"), old("my_queue", "'processing'", "999"),
			"INSERT INTO my_queue (state, parameters, user_id) VALUES ('done', '{}', 7)",
			strings.Replace(old("my_queue", "'done'", "999"), "7", "8", 1), strings.Replace(old("my_queue", "'error'", "999"), "7", "8", 1),
		}
		k := on.newKit(t, on.systemE+"; UPDATE my_queue SET state = 'processing'; "+strings.Join(rows, "; "), map[string]mapping.Table{"e": m})
		left := "SELECT concat_ws('|', state, user_id, CASE WHEN finished_dt IS NULL THEN 'never' ELSE '' END, CASE WHEN finished_dt < current_timestamp - interval '60' minute THEN 'long' ELSE '' END) FROM my_queue WHERE user_id IS NOT NULL ORDER BY 1"
		if n := k.pruned(); n != 0 {
			t.Errorf("%d rows were pruned of a table whose config sets no retention", n)
		}
		m.RetainDone, m.RetainDead = time.Hour, 2*time.Hour
		k.Store = k.reopened(map[string]mapping.Table{"e": m})
		if n := k.pruned(); n != 2 {
			t.Errorf("%d rows were pruned, want 2", n)
		}
		k.wantRows(left, "done|7|never|", "done|7||", "done|8||long", "error|7||long", "error|8||long", "processing|7||long", "waiting|7||long")
		k.wantRows("SELECT concat_ws('|', state, count(*)) FROM my_queue WHERE user_id IS NULL GROUP BY state", "processing|3")
		// A row that a sidecar finished is not old yet.
		k.write(backends.Ack{Leases: leases(k.one("e"))}, 0)
		if n := k.pruned(); n != 0 {
			t.Errorf("%d rows were pruned, want none", n)
		}
	})
}

// TestKeepInTheArchive: moved rows are deleted after keep.
func TestKeepInTheArchive(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		m := tableE()
		m.OnAck, m.Archive, m.RetainDone = mapping.Archive, "sent", time.Hour
		k := on.newKit(t, on.systemE+"; CREATE TABLE sent AS SELECT * FROM my_queue WHERE 1 = 0", map[string]mapping.Table{"e": m})
		k.write(backends.Ack{Leases: leases(k.claim("e", 2)...)}, 0)
		k.sql("UPDATE sent SET finished_dt = finished_dt - interval '61' minute WHERE queue_item_id = 1; UPDATE my_queue SET state = 'done', finished_dt = current_timestamp - interval '99' minute")
		if n := k.pruned(); n != 1 {
			t.Errorf("%d rows were pruned, want 1", n)
		}
		k.wantRows("SELECT concat_ws('|', queue_item_id, state) FROM sent", "2|done")
		k.wantRows("SELECT concat_ws('|', queue_item_id, state) FROM my_queue", "3|done") // as its own consumers do
	})
}

// TestKeepInBites: pruning goes on if one batch was not all.
func TestKeepInBites(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		m := tableE()
		m.RetainDead = time.Hour
		k := on.newKit(t, on.systemE+"; "+old("my_queue", "'error'", "61"), map[string]mapping.Table{"e": m})
		for range 8 {
			k.sql("INSERT INTO my_queue (state, parameters, finished_dt) SELECT state, parameters, finished_dt FROM my_queue WHERE state = 'error'")
		}
		for left := 256; left > 0; left -= 100 {
			if r := k.maintain(backends.Maintenance{Prune: true, Limit: 100}); r.Pruned != min(left, 100) || r.PruneMore != (left >= 100) {
				t.Errorf("%d were left: %+v", left, r)
			}
		}
		k.wantRows("SELECT concat_ws('|', state, count(*)) FROM my_queue GROUP BY state", "waiting|3")
	})
}

// TestKeepWhatCannotGo: a row that another table refers to stays and is reported. It stops neither the
// deletion of others nor other maintenance.
func TestKeepWhatCannotGo(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		m := tableE()
		m.RetainDone, m.RetainDead = time.Hour, time.Hour
		k := on.newKit(t, on.systemE+"; "+old("my_queue", "'done'", "61")+"; "+old("my_queue", "'done'", "61")+"; "+old("my_queue", "'error'", "61")+
			"; CREATE TABLE notes (about bigint, FOREIGN KEY (about) REFERENCES my_queue (queue_item_id)); INSERT INTO notes VALUES (4)", map[string]mapping.Table{"e": m})
		forward := k.obstacleClock()
		r := k.maintain(backends.Maintenance{Prune: true})
		if got := k.obstacles("queues.e.retention.done: the database refused it"); r.Pruned != 2 || fmt.Sprint(got) != "[prune e my_queue 4]" {
			t.Errorf("%+v, obstacles: %q", r, got)
		}
		if r := k.maintain(backends.Maintenance{Prune: true, Limit: 1}); r.Pruned != 0 || r.PruneMore {
			t.Errorf("again: %+v", r)
		}
		k.wantRows("SELECT concat_ws('|', queue_item_id, state) FROM my_queue ORDER BY 1", "1|waiting", "2|waiting", "3|waiting", "4|done")
		k.sql("DELETE FROM notes")
		forward(time.Minute)
		r = k.maintain(backends.Maintenance{Prune: true})
		if got := k.obstacles(""); r.Pruned != 1 || len(got) != 0 {
			t.Errorf("when nothing refers to it: %+v, obstacles: %q", r, got)
		}
	})
}

// TestKeepLocked: a program that keeps an old row locked does not delay maintenance, and is not
// disturbed.
func TestKeepLocked(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		m := tableE()
		m.RetainDone = time.Hour
		k := on.newKit(t, on.systemE+"; "+old("my_queue", "'done'", "61"), map[string]mapping.Table{"e": m})
		k.sql("BEGIN; SELECT 1 FROM my_queue WHERE queue_item_id = 4 FOR UPDATE")
		if r, err := k.Maintain(testwait.Context(t), backends.Maintenance{Prune: true, Limit: 100}); err != nil || r.Pruned != 0 || len(k.Obstacles()) != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		k.sql("COMMIT")
		if n := k.pruned(); n != 1 {
			t.Errorf("%d rows were pruned without locks on them, want 1", n)
		}
	})
}

// TestKeepOfACompositeKey: a part of the key can be the value of all rows of the queue.
func TestKeepOfACompositeKey(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		m := mapping.Table{
			Name: "jobs", RetainDone: time.Hour, OnAck: mapping.Archive, Archive: "moved", Where: map[string]mapping.Value{"tenant": {Text: "7"}},
			Columns: map[mapping.Role][]string{mapping.ID: {"tenant", "id"}, mapping.State: {"state"}, mapping.FinishedAt: {"done"}},
			States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "N"}, backends.StateClaimed: {Text: "A"}},
		}
		const columns = " (tenant int, id varchar(20), state char(1) NOT NULL, done timestamp NULL"
		k := on.newKit(t, "CREATE TABLE jobs"+columns+", PRIMARY KEY (tenant, id)); CREATE TABLE moved"+columns+
			"); INSERT INTO moved VALUES (7, 'a,b', 'A', localtimestamp - interval '61' minute), (7, 'c', 'A', localtimestamp - interval '40' minute), (8, 'd', 'A', localtimestamp - interval '61' minute)",
			map[string]mapping.Table{"e": m})
		if n := k.pruned(); n != 1 {
			t.Errorf("%d rows were pruned, want 1", n)
		}
		k.wantRows("SELECT concat_ws('|', tenant, id) FROM moved ORDER BY 1", "7|c", "8|d")
	})
}

// TestKeepThatCannotBe: what retention lacks is a misfit, and not guessed.
func TestKeepThatCannotBe(t *testing.T) {
	t.Parallel()
	f := newFitting(t, systemE+`; CREATE TABLE bare (queue_item_id bigint, state text);
		CREATE TABLE keyless (state text, finished_dt timestamptz); CREATE TABLE late (queue_item_id bigint, state text, finished_dt text, user_id bigint)`)
	without := func(change func(m *mapping.Table)) mapping.Table {
		m := tableE()
		m.RetainDone, m.RetainDead = time.Hour, time.Hour
		change(&m)
		return m
	}
	to := func(archive string) func(m *mapping.Table) {
		return func(m *mapping.Table) { m.OnAck, m.Archive = mapping.Archive, archive }
	}
	for name, c := range map[string]struct {
		m    mapping.Table
		want []string
	}{
		"all is there": {without(func(*mapping.Table) {}), nil},
		"no time": {without(func(m *mapping.Table) { delete(m.Columns, mapping.FinishedAt) }), []string{
			"queues.q.retention.done: columns.finished_at is missing: no column shows since when a row is done",
			"queues.q.retention.dead: columns.finished_at is missing: no column shows since when a row is dead"}},
		"no dead": {without(func(m *mapping.Table) { delete(m.States, backends.StateDead) }), []string{
			"queues.q.retention.dead: states.dead is missing: no value shows which rows are dead"}},
		"deleted by the ack": {without(func(m *mapping.Table) { m.OnAck = mapping.Delete; delete(m.States, backends.StateDone) }), []string{
			"queues.q.retention.done: states.done is missing: no value shows which rows are done"}},
		"an archive without a time": {without(to("bare")), []string{"queues.q.retention.done: no column shows since when a row is in bare: both tables need the column in the role finished_at"}},
		"an archive without a key":  {without(to("keyless")), []string{"queues.q.retention.done: the table keyless has no column queue_item_id, which identifies the rows of this queue"}},
		"an archive of text":        {without(to("late")), []string{"queues.q.retention.done: no column shows since when a row is in late"}},
		"an archive of several queues": {without(func(m *mapping.Table) { to("bare")(m); m.Where = map[string]mapping.Value{"user_id": {Text: "7"}} }), []string{
			"queues.q.retention.done: the table bare has no column user_id, which identifies the rows of this queue"}},
	} {
		got := f.misfits(c.m)
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if c.want == nil && got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestKeepAsksForAnIndex: check advises an index if pruning reads the whole table.
func TestKeepAsksForAnIndex(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		m := tableE()
		m.RetainDone, m.RetainDead = time.Hour, time.Hour
		k := on.newKit(t, on.systemE, map[string]mapping.Table{"e": m})
		var do string
		advice := func() (all string) {
			for _, f := range k.Advice() {
				if f.Topic == "index" {
					all, do = all+fmt.Sprintln(f.Text), f.Fix
				}
			}
			return all
		}
		if got := advice(); !strings.Contains(got, "queues.e.retention.done: no index of ") || !strings.Contains(got, "queues.e.retention.dead: no index of ") {
			t.Errorf("%q", got)
		}
		k.sql(do) // it serves both retentions
		k.Store = k.reopened(map[string]mapping.Table{"e": m})
		if got := advice(); got != "" {
			t.Errorf("with an index: %q", got)
		}
	})
}
