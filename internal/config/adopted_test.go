package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

func TestAdoptedQueues(t *testing.T) {
	c, err := Parse("c.yaml", []byte(`
databases: {main: {url: "postgres://h/d"}}
defaults: {retention: {done: 1h, dead: 2h}}
queues:
  "*": {order: lifo}
  full:
    table: app.my_queue
    columns: {id: n, payload: [a, b], state: s}
    states: {ready: null, claimed: 1, done: "null", dead: false}
    where: {kind: resize, gone_at: null}
    order: [created desc, "odd name asc", n]
    counts: deliveries
    token: {column: pid, range: [5, 9]}
    times: utc
    on_ack: {archive: '"a.b"."c""d"'}
    stuck_after: 1h
    notify: jobs
    max_attempts: 3
  numbers: {table: t, columns: {id: n, claimed_at: at, max_attempts: most, failed_at: dead}, times: milliseconds, on_ack: delete}
  plain: {table: t, columns: {id: n}, order: lifo, token: {column: pid, value: me}, on_ack: delete, claim_mode: update}
  held: {table: t, columns: {id: n}, claim_mode: transaction, on_ack: delete}
`), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	null := mapping.Value{Null: true}
	want := map[string]mapping.Table{
		"full": {
			Schema: "app", Name: "my_queue",
			Columns: map[mapping.Role][]string{mapping.ID: {"n"}, mapping.Payload: {"a", "b"}, mapping.State: {"s"}},
			States: map[backends.State]mapping.Value{
				backends.StateReady: null, backends.StateClaimed: {Text: "1"}, backends.StateDone: {Text: "null"}, backends.StateDead: {Text: "false"},
			},
			Where:      map[string]mapping.Value{"kind": {Text: "resize"}, "gone_at": null},
			Order:      []mapping.Ordering{{Column: "created", Descending: true}, {Column: "odd name"}, {Column: "n"}},
			Deliveries: true, UTC: true, Token: &mapping.Token{Column: "pid", From: 5, To: 9},
			OnAck: mapping.Archive, ArchiveSchema: "a.b", Archive: `c"d`, StuckAfter: time.Hour, Notify: "jobs",
		},
		"numbers": {
			Name: "t", Columns: map[mapping.Role][]string{mapping.ID: {"n"}, mapping.ClaimedAt: {"at"}, mapping.OwnLimit: {"most"}, mapping.FailedAt: {"dead"}},
			States: map[backends.State]mapping.Value{}, Where: map[string]mapping.Value{}, OnAck: mapping.Delete, Unit: mapping.Milliseconds,
		},
		"plain": {
			Name: "t", Columns: map[mapping.Role][]string{mapping.ID: {"n"}}, States: map[backends.State]mapping.Value{}, Where: map[string]mapping.Value{},
			LIFO: true, Token: &mapping.Token{Column: "pid", Text: "me"}, OnAck: mapping.Delete,
		},
		"held": {
			Name: "t", Columns: map[mapping.Role][]string{mapping.ID: {"n"}}, States: map[backends.State]mapping.Value{}, Where: map[string]mapping.Value{},
			OnAck: mapping.Delete, ClaimInTx: true,
		},
	}
	for name, w := range want {
		q := c.Queues[name]
		if d := cmp.Diff(w, q.table(q.Order)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	for _, adopted := range c.AdoptedTables("main") {
		if adopted.RetainDone != 0 || adopted.RetainDead != 0 {
			t.Errorf("%s: rows of another application are deleted by the defaults: %v, %v", adopted.Name, adopted.RetainDone, adopted.RetainDead)
		}
	}
	o := c.BridgeOptions(nil).Queues
	if !o["*"].LIFO || !o["plain"].LIFO || o["full"].LIFO || o["full"].MaxAttempts != 3 {
		t.Errorf("%+v", o)
	}
}

// TestAdoptedQueuesRetention checks that retention applies to an adopted table only if the queue
// itself sets it.
func TestAdoptedQueuesRetention(t *testing.T) {
	c, err := Parse("c.yaml", []byte(`
databases: {main: {url: "postgres://h/d"}}
queues:
  both: {table: t, columns: {id: n}, claim_mode: transaction, on_ack: delete, retention: {done: 7d, dead: 30d}}
  never: {table: t, columns: {id: n}, claim_mode: transaction, on_ack: delete, retention: {done: 0s, dead: forever}}
`), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	const day = 24 * time.Hour
	all := c.AdoptedTables("main")
	if both, never := all["both"], all["never"]; both.RetainDone != 7*day || both.RetainDead != 30*day || never.RetainDone != 0 || never.RetainDead != 0 {
		t.Errorf("%v, %v; %v, %v", both.RetainDone, both.RetainDead, never.RetainDone, never.RetainDead)
	}
}

func TestAdoptedQueueErrors(t *testing.T) {
	for src, want := range map[string]string{
		`q: {claim_mode: update}`:                             "queues.q.claim_mode: it goes with an adopted table",
		`q: {table: t, claim_mode: row}`:                      "update, transaction",
		`q: {states: {ready: 1}}`:                             "queues.q.states: it goes with an adopted table",
		`q: {order: [a]}`:                                     "queues.q.order: columns go with an adopted table",
		`q: {order: [[a]]}`:                                   "queues.q.order[0]: this should be a single value",
		`"*": {table: t}`:                                     "a table is one queue's",
		`q: {table: t, columns: {idd: x}}`:                    "there is no such role; known here: id, payload",
		`q: {table: t, states: {waiting: x}}`:                 "there is no such state; known here: ready",
		`q: {table: a.b.c}`:                                   "is not a table: write NAME or SCHEMA.NAME",
		`q: {table: '"a'}`:                                    "a quote is not closed",
		`q: {table: '"a"b'}`:                                  "after a name in quotes",
		`q: {table: ''}`:                                      "is not a table",
		`q: {table: t, token: {column: c}}`:                   "a value or a range",
		`q: {table: t, token: {column: c, range: 5}}`:         "write [FROM, TO]",
		`q: {table: t, token: {column: c, range: [2, 1]}}`:    "it ends before it begins",
		`q: {table: t, token: {column: c, range: [1, 2, 3]}}`: "here are 3",
		`q: {table: t, token: {column: c, range: [x, y]}}`:    `"x" is not a whole number`,
		`q: {table: t, on_ack: keep}`:                         `"keep" is not one of update, delete`,
		`q: {table: t, on_ack: {move: x}}`:                    `unknown key "move"; known here: archive`,
		`q: {notify: x}`:                                      "queues.q.notify: it goes with an adopted table",
		`q: {table: t, notify: on}`:                           `"on" is not a channel`,
		`q: {table: t, database: off, notify: x}`:             "queues.q.notify: the database off has notify: off",
		`q: {table: t, times: s}`:                             `"s" is not one of server, utc, seconds, milliseconds`,
		`q: {table: t, counts: all}`:                          `"all" is not one of failures, deliveries`,
		`q: {table: t, columns: {id: {a: b}}}`:                "this should be a single value, and is a map",
	} {
		_, err := Parse("c.yaml", []byte("databases: {main: {url: 'postgres://h/d'}, off: {url: 'postgres://h/e', notify: off}}\nqueues:\n  "+src+"\n"), noEnv)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngives %v\nwant  %s", src, err, want)
		}
	}
}

// TestChangedConstants checks that a reload opens the database again for another constant in the mapping of an adopted
// table, and reports it. An empty text and NULL are constants too.
func TestChangedConstants(t *testing.T) {
	parse := func(keys string) Config {
		c, err := Parse("c.yaml", []byte("databases: {main: {url: 'postgres://h/d'}}\nqueues: {q: {table: t, columns: {id: n, state: s}, on_ack: delete"+keys+"}}\n"), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, x := range []struct{ before, after, want string }{
		{``, `, where: {kind: ""}`, `queues.q.where.kind: none → ""`},
		{`, where: {kind: ""}`, `, where: {kind: null}`, `queues.q.where.kind: "" → null`},
		{`, where: {kind: "null"}`, `, where: {kind: null}`, `queues.q.where.kind: "null" → null`},
		{`, where: {kind: "null"}`, `, where: {kind: '"null"'}`, `queues.q.where.kind: "null" → "\"null\""`},
		{`, states: {claimed: 1}`, `, states: {ready: "", claimed: 1}`, `queues.q.states.ready: none → ""`},
	} {
		before, after := parse(x.before), parse(x.after)
		if all := Changes(before, after); len(all) != 1 || all[0] != x.want {
			t.Errorf("the changes are %q, want %q", all, x.want)
		}
		one, err1 := before.OpenKey("main")
		other, err2 := after.OpenKey("main")
		if err1 != nil || err2 != nil || one == other {
			t.Errorf("%s: the database stays open with the mapping before: %v, %v", x.want, err1, err2)
		}
	}
	if all := Changes(parse(``), parse(`, max_ready: 0`)); len(all) != 1 || all[0] != "queues.q.max_ready: none → 0" {
		t.Errorf("the changes are %q", all)
	}
}
