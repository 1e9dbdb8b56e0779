package mysql

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// nextVersion is a migration that follows the latest one: a column, an index and a table. Programs of
// migrate.Latest can run beside a program that has it.
const nextVersion = `
-- only without qsidecar_sidecars.test_note
ALTER TABLE qsidecar_sidecars ADD COLUMN test_note VARCHAR(9) DEFAULT 'it''s',
  ADD KEY qsidecar_test_index (name);
CREATE TABLE IF NOT EXISTS qsidecar_test (id BIGINT NOT NULL PRIMARY KEY);
`

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

// TestMigration: all paths to the next version create the same tables and keep the rows, also after an interruption at any
// statement.
func TestMigration(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		fresh := m.Database(t)
		open(t, Options{URL: m.URL(fresh), later: []string{nextVersion}})
		want := shape(t, m, fresh)
		script := migrate.Statements(migrate.Script(migrate.Latest, nextVersion))
		byHand := func(t *testing.T, name string, statements []string) {
			runSQL(t, connect(t, m, name), slices.DeleteFunc(statements, func(sql string) bool { return strings.HasPrefix(sql, "GRANT") })...)
		}
		paths := map[string]func(t *testing.T, name string){
			"start": func(*testing.T, string) {},
			"hand": func(t *testing.T, name string) {
				byHand(t, name, migrate.Statements(migrate.SQL(DatabaseOf(m.URL(name)), "", migrate.Latest, nextVersion)))
			},
			"hand, from nothing": func(t *testing.T, name string) {
				byHand(t, name, migrate.Statements(migrate.SQL(DatabaseOf(m.URL(name)), "", 0, nextVersion)))
			},
			"hand, twice": func(t *testing.T, name string) { byHand(t, name, slices.Concat(script, script)) },
		}
		for n := range script {
			paths[fmt.Sprintf("hand, %d statements", n)] = func(t *testing.T, name string) { byHand(t, name, slices.Clone(script[:n])) }
		}
		for by, upgrade := range paths {
			t.Run(by, func(t *testing.T) {
				t.Parallel()
				name := m.Database(t)
				backendtest.CheckNeighbours(t, open(t, Options{URL: m.URL(name)}), func() backends.Backend {
					upgrade(t, name)
					return open(t, Options{URL: m.URL(name), later: []string{nextVersion}})
				})
				if diff := cmp.Diff(want, shape(t, m, name)); diff != "" {
					t.Errorf("-fresh +this:\n%s", diff)
				}
			})
		}
	})
}
