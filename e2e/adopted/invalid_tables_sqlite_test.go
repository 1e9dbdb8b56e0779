package adopted

import (
	"path/filepath"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
)

// sqliteTables are the tables for SQLite, whose columns accept any value. A type in the config is
// compared with its usual meaning.
var sqliteTables = engineTables{
	never: []string{"no_key", "nullable_key", "above", "words", "Missing"},
	wrong: []wrongTable{
		{
			"no-key", `CREATE TABLE no_key (id int, state text)`,
			`{table: no_key, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"columns.id", "the column id alone is no primary key and no unique key: each job must be one row",
		},
		{
			"nullable-key", `CREATE TABLE nullable_key (id int UNIQUE, state text)`,
			`{table: nullable_key, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"columns.id", "no primary key and no unique key",
		},
		{
			"view", "CREATE TABLE below (id integer PRIMARY KEY, state text)\nCREATE VIEW above AS SELECT * FROM below",
			`{table: above, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"table", "above is a view: only a table's rows can be locked",
		},
		{
			"virtual", `CREATE VIRTUAL TABLE words USING fts5(id, state)`,
			`{table: words, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"table", "words is a virtual table",
		},
		{
			"missing", `CREATE TABLE missing (id integer PRIMARY KEY, state text, parameters text)`,
			`{table: missing, columns: {id: id, state: state, payload: paramters}, states: {ready: a, claimed: b, done: c}}`,
			"columns.payload", "the table has no column paramters: did you mean parameters? It has id, state, parameters",
		},
		{
			"no-table", ``,
			`{table: Missing, columns: {id: id, state: state}, states: {ready: a, claimed: b, done: c}}`,
			"table", "there is no table Missing: there is missing",
		},
		{
			"type", `CREATE TABLE type (id integer PRIMARY KEY, state smallint NOT NULL)`,
			`{table: type, columns: {id: id, state: state}, states: {ready: waiting, claimed: 2, done: 3}}`,
			"states.ready", `the column state is of the type smallint, and "waiting" is not a whole number`,
		},
		{
			"null", `CREATE TABLE nulls (id integer PRIMARY KEY, state text NOT NULL)`,
			`{table: nulls, columns: {id: id, state: state}, states: {ready: null, claimed: b, done: c}}`,
			"states.ready", "the column state cannot be NULL",
		},
		{
			"generated", `CREATE TABLE made (id integer PRIMARY KEY, at int, state int AS (at + 1) STORED)`,
			`{table: made, columns: {id: id, state: state}, states: {ready: 1, claimed: 2, done: 3}}`,
			"columns.state", "the column state is generated, so nothing can be stored in it",
		},
	},
	odd: []unusualTable{
		{
			"reserved", "CREATE TABLE \"select\" (\"order\" int NOT NULL PRIMARY KEY, \"from\" text, \"it\"\"s; DROP TABLE \"\"select\"\" --\" text, \"a,b\" int)\n" +
				`INSERT INTO "select" VALUES (1, 'a', 'p', 5)`,
			`{table: select, columns: {id: order, state: from, payload: "it\"s; DROP TABLE \"select\" --"}, where: {"a,b": 5}, order: ["a,b desc", order], states: {ready: a, claimed: "b'; --", done: "c\\"}}`,
			`SELECT "order" || '|' || "from" || '|' || "it""s; DROP TABLE ""select"" --" FROM "select"`, `1|c\|p`,
		},
		{
			"main", "CREATE TABLE \"Que.ue\" (a text NOT NULL, b int NOT NULL, state text, PRIMARY KEY (a, b)) WITHOUT ROWID\nINSERT INTO \"Que.ue\" VALUES ('x,y', 2, 'a')",
			`{table: 'main."Que.ue"', columns: {id: [a, b], state: state}, states: {ready: a, claimed: b, done: c}}`,
			`SELECT state FROM "Que.ue"`, "c",
		},
		{
			"zero", "CREATE TABLE zero (id integer PRIMARY KEY, state char(1), made datetime, due datetime)\nINSERT INTO zero VALUES (1, 'N', '0000-00-00 00:00:00', '')",
			`{table: zero, columns: {id: id, state: state, created_at: made, run_at: due}, states: {ready: N, claimed: A, done: C}, order: [made]}`,
			`SELECT state || made FROM zero`, "C0000-00-00 00:00:00",
		},
	},
}

// TestAdoptedTablesOnSQLite checks tables of SQLite that look wrong, and tables that are wrong.
func TestAdoptedTablesOnSQLite(t *testing.T) {
	sqliteTables.run(t, adopt.Server{Database: func(t testing.TB) string {
		return "sqlite:" + filepath.Join(t.(*testing.T).TempDir(), "own.db")
	}})
}
