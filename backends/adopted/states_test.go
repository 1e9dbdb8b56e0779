package adopted_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// stateKind is a state column and its values. "NULL" stands for NULL; an empty one is not mapped.
type stateKind struct {
	column                     string // its type and rules
	ready, claimed, done, dead string
	on                         string // the only product that has it; empty: all
}

var stateKinds = []stateKind{
	{"smallint NOT NULL", "1", "2", "3", "4", ""},
	{"int", "0", "-1", "NULL", "7", ""},
	{"bigint", "NULL", "1", "2", "", ""},
	{"varchar(10) NOT NULL", "new", "in work", "it's \\x", "", ""},
	{"varchar(10)", "NULL", "busy", "done", "dead", ""},
	{"varchar(10)", "new", "NULL", "done", "dead", ""},
	{"varchar(10)", "", "busy", "done", "NULL", ""},
	{"char(1) NOT NULL", "N", "A", "C", "E", ""},
	{"boolean", "false", "NULL", "true", "", ""},
	{"boolean", "NULL", "false", "true", "", ""},
	{"boolean", "no", "NULL", "YES", "", ""},
	{"decimal(3,0)", "1", "2", "3", "4", ""},
	{"mood", "sad", "so-so", "happy", "dead", "PostgreSQL"},
	{"uuid", "00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000001", "NULL", "", "PostgreSQL"},
	{"text", "new", "New", "NEW", "nEw", "PostgreSQL"},
	{"enum('new', 'busy', 'it''s', '')", "new", "busy", "it's", "", "MySQL"},
	{"tinyint unsigned", "0", "200", "255", "1", "MySQL"},
	{"varchar(10) COLLATE utf8mb4_bin", "new", "New", "NEW", "nEw", "MySQL"},
	{"", "1", "two", "NULL", "4", "SQLite"},
	{"text COLLATE NOCASE", "new", "busy", "done", "dead", "SQLite"},
}

var bare = regexp.MustCompile(`^(-?[0-9]+|true|false|NULL)$`)

// literal is a value in the owner's SQL.
func literal(value, column, product string) string {
	if bare.MatchString(value) && !strings.Contains(column, "char") && !strings.Contains(column, "text") || value == "NULL" {
		return value
	}
	if truth, ok := map[string]string{"no": "false", "YES": "true"}[value]; ok && column == "boolean" {
		return truth
	}
	value = strings.ReplaceAll(value, "'", "''")
	if product != "PostgreSQL" && product != "SQLite" {
		value = strings.ReplaceAll(value, `\`, `\\`)
	}
	return "'" + value + "'"
}

// TestStateKinds: a state can have any type, and any of its values can be NULL.
func TestStateKinds(t *testing.T) {
	var script, sqlite strings.Builder
	tables := map[string]map[string]mapping.Table{}
	scripts := map[string]*strings.Builder{"PostgreSQL": &script, "SQLite": &sqlite, "MySQL": {}}
	for product, b := range scripts {
		tables[product] = map[string]mapping.Table{}
		if product == "PostgreSQL" {
			b.WriteString("CREATE TYPE mood AS ENUM ('sad', 'so-so', 'happy', 'dead');")
		}
		for i, kind := range stateKinds {
			if kind.on == "" || kind.on == product {
				name := fmt.Sprint("s", i)
				fmt.Fprintf(b, "CREATE TABLE %s (id int PRIMARY KEY, state %s); INSERT INTO %[1]s VALUES (1, %[3]s), (2, %[3]s), (3, %[3]s), (4, %[3]s);",
					name, kind.column, literal(kind.ready, kind.column, product))
				tables[product][name] = kind.table(name)
			}
		}
	}
	onEach(t, func(t *testing.T, on *product) {
		family := "MySQL"
		if on.name == "PostgreSQL" {
			family = on.name
		}
		k := on.newKit(t, scripts[family].String(), tables[family])
		k.stateKinds(family)
	})
	newSQLiteKit(t, sqlite.String(), tables["SQLite"]).stateKinds("SQLite")
}

// TestStatesAlike: two states that the column's collation holds equal are a misfit.
func TestStatesAlike(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, "CREATE TABLE folded (id int PRIMARY KEY, state varchar(5))", nil)
		m := stateKind{ready: "N", claimed: "n", done: "c"}.table("folded")
		_, wrong, err := adopted.Check(t.Context(), k.Engine, map[string]mapping.Table{"q": m})
		if err != nil {
			t.Fatal(err)
		}
		if on.name == "PostgreSQL" && len(wrong) > 0 || on.name != "PostgreSQL" && (len(wrong) != 1 || !strings.Contains(wrong[0].Error(), "the same value as states.")) {
			t.Errorf("%v", wrong)
		}
	})
}

func (s stateKind) table(name string) mapping.Table {
	m := mapping.Table{
		Name: name, Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}},
		States: map[backends.State]mapping.Value{}, MaxAttempts: 5,
	}
	for state, value := range map[backends.State]string{backends.StateReady: s.ready, backends.StateClaimed: s.claimed, backends.StateDone: s.done, backends.StateDead: s.dead} {
		if value != "" || state == backends.StateReady {
			m.States[state] = mapping.Value{Text: value, Null: value == "NULL"}
		}
	}
	return m
}

func (k *kit) stateKinds(product string) {
	for i, kind := range stateKinds {
		if kind.on == "" || kind.on == product {
			k.Run(fmt.Sprint(kind), func(t *testing.T) {
				x := &kit{T: t, Store: k.Store, url: k.url, c: k.c, db: k.db, conn: k.conn}
				x.counted.Store(uint64(i) * 1000)
				x.stateKind(kind, fmt.Sprint("s", i), product)
			})
		}
	}
}

// stateKind takes jobs of one queue through their states.
func (k *kit) stateKind(kind stateKind, queue, product string) {
	is := func(value string, ids ...string) {
		k.Helper()
		condition := "state = " + literal(value, kind.column, product)
		if value == "NULL" {
			condition = "state IS NULL"
		}
		k.wantRows("SELECT concat_ws('', id) FROM "+queue+" WHERE "+condition+" ORDER BY id", ids...)
	}
	jobs := k.claim(queue, 10)
	if len(jobs) != 4 {
		k.Fatalf("%d jobs, want 4", len(jobs))
	}
	is(kind.claimed, "1", "2", "3", "4")
	if more := k.claim(queue, 10); len(more) > 0 {
		k.Errorf("claimed again: %v", more)
	}
	k.write(backends.Nack{Leases: leases(jobs[0]), HasDelay: true}, 0)
	k.write(backends.Ack{Leases: leases(jobs[1])}, 0)
	k.write(backends.Nack{Leases: leases(jobs[2]), Dead: true}, 0)
	k.write(backends.Release{Leases: leases(jobs[3]), Uncounted: true}, 0)
	is(kind.done, "2")
	if kind.dead != "" {
		is(kind.ready, "1", "4")
		is(kind.dead, "3")
	} else {
		is(kind.ready, "1", "3", "4") // the lease has that it is dead
	}
	for state, want := range map[backends.State]string{backends.StateReady: "14", backends.StateDone: "2", backends.StateDead: "3", backends.StateClaimed: ""} {
		views, err := k.Peek(k.Context(), backends.Peek{Queue: queue, State: state, Max: 10})
		if err != nil {
			k.Fatal(err)
		}
		got := ""
		for _, v := range views {
			got += v.ID
		}
		if got != want {
			k.Errorf("%s: %q, want %q", state, got, want)
		}
	}
	k.sql("UPDATE " + queue + " SET state = " + literal(kind.claimed, kind.column, product) + " WHERE id = 4") // its own consumer has it
	stats, err := k.Stats(k.Context(), queue)
	if err != nil || len(stats) != 1 || stats[0].Ready != 1 || stats[0].Claimed != 1 || stats[0].Done != 1 || stats[0].Dead != 1 {
		k.Errorf("%+v, %v", stats, err)
	}
	if jobs = k.claim(queue, 10); len(jobs) != 1 || jobs[0].ID != "1" || jobs[0].Attempt != 2 {
		k.Errorf("claimed %+v, want the job 1", jobs)
	}
	if n, _, err := k.Command(k.Context(), backends.Command{Kind: backends.Retry, Queue: queue, All: true}); n != 1 || err != nil {
		k.Errorf("%d are retried, %v", n, err)
	}
	is(kind.ready, "3")
	k.write(backends.Ack{Leases: leases(jobs...)}, 0)
	is(kind.done, "1", "2")
}
