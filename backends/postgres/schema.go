package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed schema.sql
var schemaV1 string

// program is this program's generation; a schema may ask for a later one.
const program = 1

// migrations make the tables, step by step: the i-th leads to version i+1. Each
// only adds, so that sidecars of neighbouring versions run together.
var migrations = []string{schemaV1}

// Migrations is the SQL that makes the tables of this version, for people who
// run it by hand. It ends with what a role needs that runs a sidecar without the
// right to make tables.
func Migrations(schema, role string) string {
	if role == "" {
		role = "qsidecar_sidecar"
	}
	var b strings.Builder
	b.WriteString("BEGIN;\n\n")
	for _, m := range migrations {
		b.WriteString(in(schema, m))
	}
	fmt.Fprintf(&b, `
-- A role that runs a sidecar (make it first: CREATE ROLE %[2]s LOGIN). Programs
-- that only INSERT need USAGE of the schema and of the sequence, and INSERT.
GRANT USAGE ON SCHEMA %[1]s TO %[2]s;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %[1]s TO %[2]s;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA %[1]s TO %[2]s;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %[1]s TO %[2]s;

COMMIT;
`, quoteName(schema), quoteName(role))
	return b.String()
}

// in puts the schema's name in.
func in(schema, sql string) string { return strings.ReplaceAll(sql, "{s}", quoteName(schema)) }

func quoteName(s string) string { return pgx.Identifier{s}.Sanitize() }

// migrate makes or completes the tables, where they need it. Any number of
// sidecars may do so at once.
func (s *Store) migrate(ctx context.Context) error {
	version, err := s.meta(ctx, s.pool)
	if err == nil && version < len(migrations) {
		if err = s.complete(ctx); err == nil {
			version, err = s.meta(ctx, s.pool)
		}
	}
	if err == nil && version < len(migrations) {
		err = fmt.Errorf("the tables in %s, schema %s, are of version %d, and version %d is needed", s.place, s.o.Schema, version, len(migrations))
	}
	return err
}

// querier is the pool or a transaction.
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
	var min int
	err = q.QueryRow(ctx, in(s.o.Schema, "SELECT version, min_program, database FROM {s}.qsidecar_meta")).Scan(&version, &min, &s.database)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("the table qsidecar_meta in %s, schema %s, is empty: its tables were not made in one piece; drop the schema, or restore it", s.place, s.o.Schema)
	}
	if err == nil && min > program {
		err = fmt.Errorf("the tables in %s, schema %s, were made by a newer qsidecar (version %d, for programs of generation %d on; this one is of generation %d): upgrade this program",
			s.place, s.o.Schema, version, min, program)
	}
	return version, err
}

// schemaLock keeps two sidecars from making the tables at once: any number that
// nobody else is likely to have chosen.
const schemaLock = 0x7173_6964_6563_6172

func (s *Store) complete(ctx context.Context) error {
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(schemaLock)); err != nil {
			return err
		}
		version, err := s.meta(ctx, tx)
		if err != nil {
			return err
		}
		for ; version < len(migrations); version++ {
			if err := s.step(ctx, tx, version); err != nil {
				return fmt.Errorf("making the tables in %s, schema %s (a person with more rights can run what `qsidecar migrate --print` shows): %w", s.place, s.o.Schema, err)
			}
		}
		return nil
	})
}

// step runs one migration. CREATE SCHEMA asks for a right on the database even
// where the schema is there.
func (s *Store) step(ctx context.Context, tx pgx.Tx, version int) error {
	sql := in(s.o.Schema, migrations[version])
	var there bool
	if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)", s.o.Schema).Scan(&there); err != nil {
		return err
	}
	if there {
		sql = strings.Replace(sql, in(s.o.Schema, "CREATE SCHEMA IF NOT EXISTS {s};"), "", 1)
	}
	return tx.Conn().PgConn().Exec(ctx, sql).Close()
}
