package adopted_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/internal/testseed"
)

// hostile are names and texts that mean something else if they are not quoted.
var hostile = []string{
	`"`, "`", `'`, `]`, `a"b`, "a`b", `a'b`, `a]b`, `""`, "``", `''`, `]]`, `\`, `\"`, "\\`", `\'`, `a\`,
	`"; DROP TABLE canary; --`, "`; DROP TABLE canary; -- ", `'; DROP TABLE canary; --`, `]; DROP TABLE canary; --`,
	`x" IS NOT NULL OR "x`, `x') OR ('1'='1`, "--", "/* x", "*/", "#", ";", "select", "SELECT 1", "a.b", "a b", " a", "%", "%s %d", "_", ":a", "@a",
	"$1", "?", "?1", "{jobs}", "${HOME}", "$$", "E'a'", "ä☃", "été", "a\nb", "a\tb", "a\x01b", "\uFFFC?", "(", ")", ",", "a,b", "=", "1", "007", "null", "true",
}

// quoter is how an owner writes names in their own DDL.
func quoter(product string) (name, text func(string) string) {
	double := func(q string) func(string) string {
		return func(s string) string { return q + strings.ReplaceAll(s, q, q+q) + q }
	}
	switch product {
	case "PostgreSQL", "SQLite":
		return double(`"`), double(`'`)
	}
	return double("`"), func(s string) string { return double(`'`)(strings.ReplaceAll(s, `\`, `\\`)) }
}

// TestHostileNames: names of tables and columns, and constants of a config, can be any text.
func TestHostileNames(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		family := "MySQL"
		if on.name == "PostgreSQL" {
			family = on.name
		}
		ddl, tables := hostileTables(family)
		on.newKit(t, ddl, tables).hostileNames(tables, family)
	})
	ddl, tables := hostileTables("SQLite")
	newSQLiteKit(t, ddl, tables).hostileNames(tables, "SQLite")
}

// hostileTables have hostile names, columns, values and rows.
func hostileTables(product string) (ddl string, tables map[string]mapping.Table) {
	name, text := quoter(product)
	varchar := "varchar(80)"
	if product == "MySQL" {
		varchar += " CHARACTER SET utf8mb4"
	}
	tables = map[string]mapping.Table{}
	var b strings.Builder
	b.WriteString("CREATE TABLE canary (id int);")
	for i, h := range hostile {
		next := hostile[(i+1)%len(hostile)]
		column := func(role string) string { return h + role }
		m := mapping.Table{
			Name: "t" + h + "x", Columns: map[mapping.Role][]string{
				mapping.ID: {column("id1"), column("id2")}, mapping.State: {h + "state"}, mapping.Payload: {column("p1"), column("p2")}, mapping.Worker: {column("worker")},
				mapping.Error: {column("error")}, mapping.Result: {column("result")}, mapping.Headers: {column("header")}, mapping.Attempts: {column("tries")},
			},
			States: map[backends.State]mapping.Value{
				backends.StateReady: {Text: "a" + h}, backends.StateClaimed: {Text: "b" + h}, backends.StateDone: {Text: "c" + h}, backends.StateDead: {Text: "d" + h},
			},
			Where: map[string]mapping.Value{column("kind"): {Text: next}},
			Order: []mapping.Ordering{{Column: column("id2"), Descending: true}},
		}
		tables[fmt.Sprint("q", i)] = m
		n := func(role string) string { return name(column(role)) }
		fmt.Fprintf(&b, "CREATE TABLE %s (", name(m.Name))
		for _, role := range []string{"state", "p1", "p2", "worker", "error", "result", "header", "kind"} {
			fmt.Fprintf(&b, "%s %s, ", n(role), varchar)
		}
		fmt.Fprintf(&b, "%s %s NOT NULL, %s %[2]s NOT NULL, %[4]s int NOT NULL DEFAULT 0, PRIMARY KEY (%[1]s, %[3]s));", n("id1"), varchar, n("id2"), n("tries"))
		for _, id := range []string{"1", "2"} {
			fmt.Fprintf(&b, "INSERT INTO %s (%s, %s, %s, %s, %s) VALUES (%s, %s, %s, %s, %s);",
				name(m.Name), n("id1"), n("id2"), n("state"), n("kind"), n("p1"), text(h), text(id), text("a"+h), text(next), text(h))
		}
	}
	return b.String(), tables
}

func (k *kit) hostileNames(tables map[string]mapping.Table, product string) {
	k.Helper()
	name, _ := quoter(product)
	for i, h := range hostile {
		queue := fmt.Sprint("q", i)
		m := tables[queue]
		jobs := k.claim(queue, 5)
		id := func(n string) string { return strings.NewReplacer(`\`, `\\`, `,`, `\,`).Replace(h) + "," + n }
		if len(jobs) != 2 || jobs[0].ID != id("2") || jobs[1].ID != id("1") || !strings.Contains(string(jobs[0].Payload), "p2") {
			k.Fatalf("%q: claimed %+v", h, jobs)
		}
		k.write(backends.Ack{Leases: leases(jobs[0]), Result: []byte(h)}, 0)
		k.write(backends.Nack{Leases: leases(jobs[1]), Error: h, Dead: true}, 0)
		c := func(role mapping.Role) string { return "coalesce(" + name(m.Columns[role][0]) + ", '-')" }
		k.wantRows(fmt.Sprintf("SELECT concat_ws('|', %s, %s, %s, %s) FROM %s ORDER BY %s", name(m.Columns[mapping.ID][1]), c(mapping.State), c(mapping.Result), c(mapping.Error),
			name(m.Name), name(m.Columns[mapping.ID][1])), "1|d"+h+"|-|"+h, "2|c"+h+"|"+h+"|-")
		if n, _, err := k.Command(k.Context(), backends.Command{Kind: backends.Retry, Queue: queue, IDs: []string{id("1")}}); n != 1 || err != nil {
			k.Errorf("%q: %d are retried, %v", h, n, err)
		}
		if stats, err := k.Stats(k.Context(), queue); err != nil || len(stats) != 1 || stats[0].Ready != 1 || stats[0].Done != 1 {
			k.Errorf("%q: %+v, %v", h, stats, err)
		}
	}
	found, err := k.Examine(k.Context(), nil)
	if err != nil {
		k.Errorf("check: %v", err)
	}
	indexes := 0
	for _, f := range found {
		if f.Topic == "index" && strings.HasPrefix(f.Fix, "CREATE INDEX") {
			k.sql(f.Fix)
			indexes++
		}
	}
	if indexes != len(hostile) {
		k.Errorf("check advises %d indexes, want %d", indexes, len(hostile))
	}
	k.wantRows("SELECT concat_ws('', count(*)) FROM canary", "0")
	k.texts()
}

// texts has the server return random texts.
func (k *kit) texts() {
	k.Helper()
	r := testseed.Rand(k)
	letters := []rune("\"'`\\]?:;-/*#%$@{}()=, \n\x01\uFFFCaÄ☃😀e0")
	all := slices.Clone(hostile)
	for range 300 {
		text := ""
		for range r.IntN(12) {
			text += string(letters[r.IntN(len(letters))])
		}
		all = append(all, text)
	}
	g := k.Dialect()
	var asks []*backends.Statement
	for _, text := range all {
		for _, sql := range []string{g.Text(text), g.Constant(text, backends.Column{Name: "c", Type: "text", Kind: backends.TextColumn})} {
			asks = append(asks, &backends.Statement{Text: "SELECT " + g.ToText(sql), Row: func(cells [][]byte) error {
				if string(cells[0]) != text {
					k.Errorf("%s returns %q, want %q", sql, cells[0], text)
				}
				return nil
			}})
		}
	}
	if err := k.Query(k.Context(), asks...); err != nil {
		k.Error(err)
	}
}
