// Package migrate creates and updates the tables of a sidecar in a PostgreSQL
// schema. It holds the SQL of each version and applies the missing versions while
// sidecars of the previous version keep working. It prints the same SQL for a DBA.
//
// Package postgres imports it to open a database, and backends/postgres/diagnose
// to check one. It imports neither: it uses pgx and the helpers of
// backends/internal/core. Start reading at Run.
package migrate

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Program is the generation of this program. A schema can require a later generation.
const Program = 1

// Base is the version of the tables that schema.sql creates.
const Base = 1

// Migration leads from one version of the tables to the next. It only adds, so that
// sidecars of neighbouring versions work side by side. A migration that can't keep
// this rule raises min_program.
type Migration struct {
	// Indexes are built before SQL runs, one at a time and without blocking writes.
	Indexes []Index
	// SQL and the update of the version are one transaction. It must hold locks only
	// briefly. If it raises min_program, its ALTERs can wait longer.
	SQL string
}

// Index is an index of a migration.
type Index struct {
	Name string
	On   string // the text after ON; {s} stands for the schema
}

//go:embed schema.sql
var schemaSQL string

// dropped returns the statement that removes the remains of an interrupted build.
func (i Index) dropped() string {
	return "DROP INDEX CONCURRENTLY IF EXISTS {s}." + i.Name
}

// created returns the statement that builds the index without blocking writes.
func (i Index) created() string { return "CREATE INDEX CONCURRENTLY " + i.Name + " ON " + i.On }

// Fresh returns the SQL that creates all tables of a version (Base to the latest) in one
// transaction. No writer can be blocked there, so each index is built by a plain CREATE
// INDEX. {s} stands for the schema.
func Fresh(version int, later ...Migration) string {
	sql := schemaSQL
	for i, m := range slices.Concat(migrations, later) {
		if Base+i+1 > version {
			break
		}
		sql += "\n" + m.SQL
		for _, x := range m.Indexes {
			sql += fmt.Sprintf("\nCREATE INDEX %s ON %s;\n", x.Name, x.On)
		}
		sql += "\n" + reached(Base+i+1) + ";\n"
	}
	return sql
}

// SQL returns a script for psql that leads from the tables of version `from` (0: no
// tables) to those of Latest, and through later migrations, which tests add. It ends with
// the grants that a role needs to run a sidecar without the right to create tables. An
// empty role means qsidecar_sidecar.
func SQL(schema, role string, from int, later ...Migration) string {
	if role == "" {
		role = "qsidecar_sidecar"
	}
	var b strings.Builder
	b.WriteString("-- Names mean the same whatever the path of this role is.\nSET search_path = pg_catalog, pg_temp;\n\n")
	all := slices.Concat(migrations, later)
	begin := "BEGIN;\n"
	if from <= 0 { // one transaction: without the role nothing is created, so that the same SQL can be run again
		from, begin = Base+len(all), ""
		b.WriteString("BEGIN;\n\n" + Fresh(from, later...))
	}
	for v := from; v < Base+len(all); v++ {
		m := all[v-Base]
		for _, x := range m.Indexes {
			fmt.Fprintf(&b, "-- These run beside writers, so outside of a transaction. If one is interrupted, run both again.\n%s;\n%s;\n\n", x.dropped(), x.created())
		}
		fmt.Fprintf(&b, "BEGIN;\n-- A statement that waits for a lock blocks others. If this times out, run the transaction again.\nSET LOCAL lock_timeout = '%d ms';\n\n%s\n%s;\n\nCOMMIT;\n",
			lockTimeout.Milliseconds(), m.SQL, reached(v+1))
	}
	fmt.Fprintf(&b, `
-- A role that runs a sidecar (create it first: CREATE ROLE %[1]s LOGIN). Programs
-- that only INSERT need USAGE of the schema and of the sequence, and INSERT.
%[2]sGRANT USAGE ON SCHEMA {s} TO %[1]s;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {s} TO %[1]s;
GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {s} TO %[1]s;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {s} TO %[1]s;
COMMIT;
`, QuoteName(role), begin)
	return In(schema, b.String())
}

// reached returns the statement that sets the version of the tables, unless it is already set.
func reached(version int) string {
	return fmt.Sprintf("UPDATE {s}.qsidecar_meta SET version = %d WHERE version = %d", version, version-1)
}

// In replaces each {s} of the SQL with the quoted name of the schema.
func In(schema, sql string) string { return strings.ReplaceAll(sql, "{s}", QuoteName(schema)) }

// QuoteName quotes an identifier.
func QuoteName(s string) string { return pgx.Identifier{s}.Sanitize() }

// Querier is a pool, a connection or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Meta is the row that describes the tables.
type Meta struct {
	Version  int    // 0: there are no tables
	Database string // backends.Info.Database
}

// errEmpty means that another program has emptied qsidecar_meta. The jobs are still there.
var errEmpty = errors.New("the table qsidecar_meta is empty")

// insertMeta returns the statement of the schema that inserts the row of qsidecar_meta.
func insertMeta() string {
	_, values, _ := strings.Cut(Fresh(Latest), "INSERT INTO {s}.qsidecar_meta")
	values, _, _ = strings.Cut(values, ";")
	return "INSERT INTO {s}.qsidecar_meta" + values
}

// Read reads the row that describes the tables of a schema. Errors contain place, the address of
// the database. If the tables need a later program, Read returns an error and sets Meta.
func Read(ctx context.Context, q Querier, place, schema string) (m Meta, err error) {
	// to_regclass doesn't work here: within a transaction, a session can remember for too
	// long that it didn't find a name.
	var exists bool
	if err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'qsidecar_meta')`,
		schema).Scan(&exists); err != nil || !exists {
		return Meta{}, err
	}
	var oldest int // the oldest program generation that can use the tables
	err = q.QueryRow(ctx, In(schema, "SELECT version, min_program, database FROM {s}.qsidecar_meta")).Scan(&m.Version, &oldest, &m.Database)
	if errors.Is(err, pgx.ErrNoRows) {
		return Meta{}, fmt.Errorf("%w in %s, schema %s: restore its row: %s", errEmpty, place, schema, In(schema, insertMeta()))
	}
	if err == nil && oldest > Program {
		err = fmt.Errorf("the tables in %s, schema %s, were created by a newer qsidecar (version %d, for programs of generation %d on; this one is of generation %d): upgrade this program",
			place, schema, m.Version, oldest, Program)
	}
	return m, err
}

// Names returns the names of all objects of one kind, such as TABLE, that a version creates.
func Names(kind string, version int) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^CREATE `+kind+` (?:IF NOT EXISTS )?(?:\{s\}\.)?(\w+)`).FindAllStringSubmatch(Fresh(version), -1) {
		names = append(names, m[1])
	}
	return names
}
