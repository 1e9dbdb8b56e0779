package adopt

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/config"

	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestProposedTexts checks that every text is read back unchanged.
func TestProposedTexts(t *testing.T) {
	for _, text := range []string{
		"a", "null", "NULL", "~", "", "yes", "N", "y", "true", "1", "01", "-1", "1e3", "0x1f", ".inf", "a b", " a", "a ", "a: b", "a #b", "#a", "- a", "[a", "{a", "a,b", "'a", `"a`, `a"b\\`,
		"${HOME}", "$${X}", "$", "a\nb", "\t", "ä", "\u2028", "@a", "`a`", "a desc", "*a", "&a", "!a", "%a", "a:", "1:2", "=", "<<", "|", ">", "2026-01-01",
	} {
		c, err := config.Parse("c.yaml", []byte("databases: {main: {url: 'postgres://h/d'}}\nqueues:\n  q:\n    table: t\n    columns: {id: ["+yamlText(text)+", x]}\n    where:\n      "+
			yamlKey(text)+": "+yamlText(text)+"\n    states: {ready: "+yamlText(text)+", dead: null}\n"), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Errorf("%q is written %s: %v", text, yamlText(text), err)
			continue
		}
		q := c.AdoptedTables("main")["q"]
		if _, has := q.Where[text]; q.Columns[mapping.ID][0] != text || q.Where[text] != (mapping.Value{Text: text}) || !has || q.States[backends.StateReady] != (mapping.Value{Text: text}) {
			t.Errorf("%q is written %s and read %q, %v, %v", text, yamlText(text), q.Columns["id"], q.Where, q.States)
		}
	}
	for _, name := range []mapping.Table{{Name: "a"}, {Schema: "s", Name: "a"}, {Name: `a.b"c`}, {Schema: `"`, Name: "."}} {
		got, err := config.ParseTableName(tableText(name.Schema, name.Name))
		if err != nil || got.Schema != name.Schema || got.Name != name.Name {
			t.Errorf("%+v is written %s and read %+v, %v", name, tableText(name.Schema, name.Name), got, err)
		}
	}
	for table, want := range map[string]string{"my_queue": "my_queue", "my queue": "my-queue", "...": "queue", ".Ä x": "x", "-a": "a"} {
		if got := queueNamed(table); got != want {
			t.Errorf("%s: %s, want %s", table, got, want)
		}
	}
}

// FuzzProposedText checks that a config with any name or value is read back unchanged, on
// one line.
func FuzzProposedText(f *testing.F) {
	for _, text := range []string{"a", "null", "${A}", "$$", "a: b", "\x7f", "\u0085", "é\\", "- ", "?", "0x1", "1_000", "\ufeff", "a\tb", "'", "!!str", "%"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return // not a name or value in a database
		}
		value, key := yamlText(text), yamlKey(text)
		if strings.ContainsAny(value+key, "\r\n") {
			t.Fatalf("%q is written %s", text, value)
		}
		c, err := config.Parse("c.yaml", []byte("databases: {main: {url: 'postgres://h/d'}}\nqueues:\n  q:\n    table: t\n    columns: {id: ["+value+", x]}\n    where:\n      "+key+": "+value+"  # guessed\n"), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatalf("%q is written %s: %v", text, value, err)
		}
		if q := c.AdoptedTables("main")["q"]; q.Columns[mapping.ID][0] != text || q.Where[text] != (mapping.Value{Text: text}) || len(q.Where) != 1 {
			t.Errorf("%q is written %s and read %q, %v", text, value, q.Columns["id"], q.Where)
		}
	})
}
