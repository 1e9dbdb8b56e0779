package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPagesAreCurrent checks that the generated pages are those of the current sources. Line breaks
// don't count, because they differ between versions of RDoc.
func TestPagesAreCurrent(t *testing.T) {
	root := filepath.Join("..", "..")
	for name, generate := range pages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, err := generate(root)
			if err != nil {
				t.Fatal(err)
			}
			have, err := os.ReadFile(pagePath(root, name))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(strings.Fields(string(have)), strings.Fields(header+want)) {
				t.Errorf("docs/reference/%s.md isn't current: run `make reference`", name)
			}
		})
	}
}

// TestConfigSections checks how comments of the example config become text, tables and examples.
func TestConfigSections(t *testing.T) {
	const example = "# Intro, of\n# two lines.\n\n# The first key.\na:\n  b: 1      # one\n            # two\n  # Before c.\n  c: \"\"\n" +
		"  # d: {e: f}\n\n# The second key.\ng: 30s\n\n# A remark.\n"
	const want = "Intro, of\ntwo lines.\n\n## `a`\n\nThe first key.\n\n" +
		"| key | default | meaning |\n| --- | --- | --- |\n| `b` | `1` | one two |\n\nBefore c.\n\n" +
		"| key | default | meaning |\n| --- | --- | --- |\n| `c` | `\"\"` |  |\n\n```yaml\nd: {e: f}\n```\n\n" +
		"## `g`\n\nThe second key.\n\n| key | default | meaning |\n| --- | --- | --- |\n| `g` | `30s` |  |\n\nA remark.\n"
	if got := renderConfig(example); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestTables checks how a table's definition becomes columns.
func TestTables(t *testing.T) {
	const sql = "CREATE TABLE IF NOT EXISTS {s}.qsidecar_a (\n  id bigint PRIMARY KEY DEFAULT f(1, 2) CHECK (id > 0), -- the id\n" +
		"  -- about key\n  `key` varbinary(255)\n    CHECK (x(\n    y)),\n  state text AS (CASE a\n    WHEN 1 THEN 2 END),\n  CONSTRAINT c CHECK (id > 0),\n  UNIQUE (id)\n) ENGINE = x;\n"
	got := tablesOf(sql)
	if len(got) != 1 || got[0].name != "qsidecar_a" || len(got[0].columns) != 3 {
		t.Fatalf("got %+v", got)
	}
	want := []column{{"id", "bigint", "the id"}, {"key", "varbinary(255)", "about key"}, {"state", "text", ""}}
	for i, c := range got[0].columns {
		if c != want[i] {
			t.Errorf("got %+v, want %+v", c, want[i])
		}
	}
}
