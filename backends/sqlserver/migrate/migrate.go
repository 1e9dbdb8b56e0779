// Package migrate creates and updates the tables of a sidecar in a SQL Server schema, and
// prints the same SQL for a DBA.
//
// Package sqlserver imports it to open a database, and backends/sqlserver/diagnose to
// check one. It imports neither: package sqlserver has the transaction in which Advance
// runs. Start reading at Advance.
package migrate

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
)

//go:embed schema.sql
var schemaSQL string

const (
	base = 1 // the version of the tables that schema.sql creates

	// Latest is the version of the tables that this program creates and needs.
	Latest = base

	// program is the generation of this program. A schema can require a later one.
	program = 1
)

// migrations holds the migrations: the i-th leads from version base+i to the next one. They only add, so that sidecars
// of neighbouring versions work side by side. Their batches end with GO. {s} stands for the schema.
var migrations [Latest - base]string

// Script returns the SQL that leads from the tables of version `from` (0: there are none) to the latest ones, and
// through later migrations, which tests add. It leaves existing objects alone. {s} stands for the schema.
func Script(from int, later ...string) string {
	var b strings.Builder
	if from <= 0 {
		b.WriteString(schemaSQL)
		from = base
	}
	for i, sql := range slices.Concat(migrations[:], later) {
		if base+i >= from {
			fmt.Fprintf(&b, "\n%s\nGO\nUPDATE {s}.qsidecar_meta SET version = %d WHERE version = %d;\nGO\n", strings.TrimSuffix(strings.TrimSpace(sql), "\nGO"), base+i+1, base+i)
		}
	}
	return b.String()
}

// Rights grants the rights of a role that runs a sidecar without the right to create tables. It grants them object by
// object, because Babelfish has no other grants. {s} stands for the schema, {r} for the role.
const Rights = `-- A role that runs a sidecar (make it first: CREATE ROLE {r}). Programs that only
-- INSERT need INSERT on qsidecar_jobs.
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_jobs TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_failures TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_keys TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_sidecars TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_queues TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_gates TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_capped TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_stripes TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_admissions TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_history TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_requeues TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_cancelled TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_schedules TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_progress TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_pending TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_batches TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_batch_members TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_batch_notes TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_commits TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_leases TO {r};
GRANT SELECT ON {s}.qsidecar_meta TO {r};
GRANT UPDATE ON {s}.qsidecar_sequence TO {r};
GRANT EXECUTE ON {s}.qsidecar_now TO {r};
GO
`

// SQL returns a script for sqlcmd, whose batches end with GO. It leads from the tables of version `from` (0: there
// are none) to those of Latest, and leaves existing objects alone. It ends with the grants that a role needs to run a
// sidecar without the right to create tables. If role is empty, it is qsidecar_sidecar.
func SQL(schema, role string, from int) string {
	if schema == "" {
		schema = "qsidecar"
	}
	if role == "" {
		role = "qsidecar_sidecar"
	}
	var b strings.Builder
	b.WriteString("SET QUOTED_IDENTIFIER, ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, ARITHABORT, CONCAT_NULL_YIELDS_NULL, XACT_ABORT ON;\nGO\n\n")
	b.WriteString(In(schema, Script(from)))
	b.WriteString("\n")
	b.WriteString(strings.ReplaceAll(In(schema, Rights), "{r}", QuoteName(role)))
	return b.String()
}

// In replaces each {s} by the quoted name of the schema, and each {'s} by its name as a
// text.
func In(schema, text string) string {
	return strings.NewReplacer("{s}", QuoteName(schema), "{'s}", QuoteText(schema)).Replace(text)
}

// QuoteName quotes an identifier.
func QuoteName(s string) string { return "[" + strings.ReplaceAll(s, "]", "]]") + "]" }

// QuoteText quotes a text.
func QuoteText(s string) string { return "N'" + strings.ReplaceAll(s, "'", "''") + "'" }

// Batches splits a script at the lines GO.
func Batches(script string) (all []string) {
	var b strings.Builder
	for line := range strings.Lines(script + "\nGO\n") {
		if strings.TrimSpace(line) != "GO" {
			b.WriteString(line)
			continue
		}
		if text := strings.TrimSpace(b.String()); text != "" {
			all = append(all, text)
		}
		b.Reset()
	}
	return all
}

// Querier is a pool or a connection.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// scan reads the only row of a query.
func scan(ctx context.Context, q Querier, query string, to ...any) (err error) {
	rows, err := q.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() { // read to the end: an error can follow the row
		if err := rows.Scan(to...); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Meta is the row that describes the tables.
type Meta struct {
	Version  int    // 0: there are no tables, or not all
	Database string // backends.Info.Database
}

//go:embed meta.sql
var metaSQL string

// MetaSQL is the query for Meta and the generation of program that the tables need.
// {s} stands for the schema.
func MetaSQL() string {
	_, query, _ := strings.Cut(strings.TrimSpace(metaSQL), "\n") // the text after the comment
	return query
}

// Read reads the row that describes the tables of a schema. place names the database's address in errors. For tables
// that need a later program it returns an error, and Meta.
func Read(ctx context.Context, q Querier, place, schema string) (m Meta, err error) {
	exists := false
	if err := scan(ctx, q, "SELECT CASE WHEN OBJECT_ID("+QuoteText(QuoteName(schema)+".qsidecar_meta")+") IS NULL THEN 0 ELSE 1 END;", &exists); err != nil || !exists {
		return Meta{}, err
	}
	oldest := 0 // the oldest program that can use them
	if err := scan(ctx, q, In(schema, MetaSQL()), &m.Version, &oldest, &m.Database); err != nil {
		return Meta{}, err
	}
	if oldest > program {
		return m, fmt.Errorf("the tables in %s, schema %s, were created by a newer qsidecar (version %d, for programs of generation %d on; this one is of generation %d): upgrade this program",
			place, schema, m.Version, oldest, program)
	}
	return m, nil
}

// LockSQL takes the lock that keeps two sidecars from creating the tables at the same time. The server frees it at
// the end of the transaction.
const LockSQL = `SET NOCOUNT ON;
SET XACT_ABORT ON;
DECLARE @got int;
EXEC @got = sp_getapplock @Resource = N'qsidecar schema', @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 60000;
SELECT @got AS got;`

// Advance creates the tables, or updates them to Latest, in the connection's open transaction. later are migrations that
// follow Latest; tests set them.
func Advance(ctx context.Context, c *sql.Conn, place, schema string, later ...string) error {
	got := 0
	if err := scan(ctx, c, LockSQL, &got); err != nil {
		return err
	}
	if got < 0 {
		return errors.New("another sidecar has been creating the tables for a minute (sp_getapplock)")
	}
	meta, err := Read(ctx, c, place, schema)
	if err != nil {
		return err
	}
	for _, text := range Batches(In(schema, Script(meta.Version, later...))) { // none if another sidecar was faster
		if _, err := c.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}
