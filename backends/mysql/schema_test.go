package mysql

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// preview creates a database with the tables of the last preview, with rows in each.
func preview(t *testing.T, m *testserver.MySQL) (name string) {
	t.Helper()
	sql, err := os.ReadFile("migrate/testdata/schema_2.sql")
	if err != nil {
		t.Fatal(err)
	}
	name = m.Database(t)
	runSQL(t, connect(t, m, name), migrate.Statements(strings.ReplaceAll(string(sql), "{position}", migrate.Position))...)
	return name
}

// notShape is what two equal tables can differ in: the next id, and the character sets of literals, which
// MySQL writes before them and changes when it copies a table.
var notShape = regexp.MustCompile(` AUTO_INCREMENT=\d+|\b_(?:ascii|utf8mb4)(')`)

// shape returns the definitions of all tables, line by line, and the versions.
func shape(t *testing.T, m *testserver.MySQL, name string) (all []string) {
	t.Helper()
	c := connect(t, m, name)
	rows, err := c.QueryContext(t.Context(), "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var tables []string
	for rows.Next() {
		var table string
		if err := rows.Scan(&table); err != nil {
			t.Fatal(err)
		}
		tables = append(tables, table)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		var name, text string
		if err := c.QueryRowContext(t.Context(), "SHOW CREATE TABLE "+table).Scan(&name, &text); err != nil {
			t.Fatal(err)
		}
		var columns, constraints []string // CHECKs have no order
		for line := range strings.SplitSeq(notShape.ReplaceAllString(text, "$1"), "\n") {
			if line = strings.TrimSuffix(line, ","); strings.Contains(line, " CONSTRAINT ") {
				constraints = append(constraints, line)
			} else {
				columns = append(columns, line)
			}
		}
		slices.Sort(constraints)
		all = append(append(all, columns...), constraints...)
	}
	n := numberOf(t, m, name, "SELECT version * 10 + min_program FROM qsidecar_meta")
	return append(all, fmt.Sprintf("version and program: %d", n))
}

// TestMigration: the tables of the last preview become those of this version, and keep their
// rows, even if the migration was interrupted after any statement.
func TestMigration(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		fresh := m.Database(t)
		open(t, Options{URL: m.URL(fresh)})
		want := shape(t, m, fresh)
		script := migrate.Statements(migrate.Rename())
		byHand := func(t *testing.T, name string, statements []string) { runSQL(t, connect(t, m, name), statements...) }
		for by, upgrade := range map[string]func(t *testing.T, name string){
			"start": func(*testing.T, string) {},
			"hand": func(t *testing.T, name string) {
				all := migrate.Statements(migrate.SQL(DatabaseOf(m.URL(name)), "", migrate.Preview))
				byHand(t, name, slices.DeleteFunc(all, func(sql string) bool { return strings.HasPrefix(sql, "GRANT") }))
			},
			"hand, twice":           func(t *testing.T, name string) { byHand(t, name, slices.Concat(script, script)) },
			"hand, half":            func(t *testing.T, name string) { byHand(t, name, script[:len(script)/2]) },
			"hand, all but the end": func(t *testing.T, name string) { byHand(t, name, script[:len(script)-1]) },
		} {
			t.Run(by, func(t *testing.T) {
				t.Parallel()
				name := preview(t, m)
				upgrade(t, name)
				s := open(t, Options{URL: m.URL(name)})
				if diff := cmp.Diff(want, shape(t, m, name)); diff != "" {
					t.Errorf("-fresh +this:\n%s", diff)
				}
				backendtest.CheckMigrated(t, s)
			})
		}
	})
}

// TestOlderPreview: tables of an older preview are refused with what to do, and not changed.
func TestOlderPreview(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := preview(t, m)
		runSQL(t, connect(t, m, name), "UPDATE qsidecar_meta SET version = 1")
		before := shape(t, m, name)
		if _, err := Open(t.Context(), Options{URL: m.URL(name)}); err == nil || !strings.Contains(err.Error(), "are of version 1: first start the last preview") {
			t.Errorf("%v, want it to say what to do", err)
		}
		if diff := cmp.Diff(before, shape(t, m, name)); diff != "" {
			t.Errorf("-before +after:\n%s", diff)
		}
		if sql := migrate.SQL("app", "", 1); !strings.Contains(sql, "first start the last preview") || strings.Contains(sql, "ALTER") {
			t.Errorf("the printed script: %s", sql)
		}
	})
}
