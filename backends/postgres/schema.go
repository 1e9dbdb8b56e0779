package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// program is this program's generation; a schema may ask for a later one.
const program = 1

// migration leads from one version of the tables to the next. It only adds, so
// that sidecars of neighbouring versions run together: whoever writes one keeps
// that true, or raises min_program.
type migration struct {
	// indexes are built before sql is run, each by itself and without holding up
	// anybody's writes.
	indexes []index
	// sql and the new version are one transaction. It may be run again after it
	// was done, and takes no lock for longer than a moment.
	sql string
}

type index struct{ name, on string } // on is what stands behind ON

//go:embed schema.sql
var schemaV1 string

//go:embed schema_2.sql
var schemaV2 string

//go:embed schema_3.sql
var schemaV3 string

//go:embed schema_4.sql
var schemaV4 string

// versions: the i-th leads to version i+1. How many of them this program knows
// says `latest`.
var versions = []migration{
	{sql: schemaV1},
	{sql: schemaV2, indexes: []index{{"qsidecar_failures_at", "{s}.qsidecar_failures (at)"}}},
	{sql: schemaV3},
	{sql: schemaV4},
}

// dropped removes what an interrupted build left; made builds it.
func (x index) dropped() string {
	return "DROP INDEX CONCURRENTLY IF EXISTS {s}." + x.name
}
func (x index) made() string { return "CREATE INDEX CONCURRENTLY " + x.name + " ON " + x.on }

// migrations are the versions that this program knows, as they are made where
// there is nothing yet: with nobody to hold up, indexes are built at once.
var migrations = func() (all []string) {
	for _, m := range versions[:latest] {
		sql := m.sql
		for _, x := range m.indexes {
			sql += fmt.Sprintf("\nCREATE INDEX %s ON %s;\n", x.name, x.on)
		}
		all = append(all, sql)
	}
	return all
}()

// fresh makes everything in one transaction.
func fresh() string {
	return strings.Join(migrations, "\n") + fmt.Sprintf("\nUPDATE {s}.qsidecar_meta SET version = %d;\n", latest)
}

// Migrations is the SQL that makes the tables of this version out of those of
// the version `from` (0: there are none), for people who run it by hand, as
// `psql -f` does: statement by statement. It ends with what the role needs that
// runs a sidecar without the right to make tables (empty: qsidecar_sidecar).
func Migrations(schema, role string, from int) string {
	if role == "" {
		role = "qsidecar_sidecar"
	}
	var b strings.Builder
	if from <= 0 {
		b.WriteString("BEGIN;\n\n" + fresh() + "\nCOMMIT;\n")
		from = latest
	}
	for v := from; v < latest; v++ {
		for _, x := range versions[v].indexes {
			fmt.Fprintf(&b, "-- Beside writers, and so in no transaction. Should it be interrupted: once more, both.\n%s;\n%s;\n\n", x.dropped(), x.made())
		}
		fmt.Fprintf(&b, "BEGIN;\n-- Who waits for a lock holds up others. Should it not be had in time: once more.\nSET LOCAL lock_timeout = '%d ms';\n\n%s\n%s;\n\nCOMMIT;\n",
			lockTimeout.Milliseconds(), versions[v].sql, reached(v+1))
	}
	fmt.Fprintf(&b, `
-- A role that runs a sidecar (make it first: CREATE ROLE %[1]s LOGIN). Programs
-- that only INSERT need USAGE of the schema and of the sequence, and INSERT.
BEGIN;
GRANT USAGE ON SCHEMA {s} TO %[1]s;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {s} TO %[1]s;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {s} TO %[1]s;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {s} TO %[1]s;
COMMIT;
`, quoteName(role))
	return in(schema, b.String())
}

// reached notes that the tables are of that version, unless they are already.
func reached(version int) string {
	return fmt.Sprintf("UPDATE {s}.qsidecar_meta SET version = %d WHERE version = %d", version, version-1)
}

// in puts the schema's name in.
func in(schema, sql string) string { return strings.ReplaceAll(sql, "{s}", quoteName(schema)) }

func quoteName(s string) string { return pgx.Identifier{s}.Sanitize() }

// querier is the pool, a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// meta reads the row that describes the tables; version 0: there are none.
func (s *Store) meta(ctx context.Context, q querier) (version int, err error) {
	// Not by to_regclass: what a session once looked for and did not find it may
	// remember, in the midst of a transaction, for longer than it is true.
	var there bool
	if err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'qsidecar_meta')`,
		s.o.Schema).Scan(&there); err != nil || !there {
		return 0, err
	}
	var oldest int // program that may use them
	err = q.QueryRow(ctx, in(s.o.Schema, "SELECT version, min_program, database FROM {s}.qsidecar_meta")).Scan(&version, &oldest, &s.database)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("the table qsidecar_meta in %s, schema %s, is empty: its tables were not made in one piece; drop the schema, or restore it", s.place, s.o.Schema)
	}
	if err == nil && oldest > program {
		err = fmt.Errorf("the tables in %s, schema %s, were made by a newer qsidecar (version %d, for programs of generation %d on; this one is of generation %d): upgrade this program",
			s.place, s.o.Schema, version, oldest, program)
	}
	return version, err
}
