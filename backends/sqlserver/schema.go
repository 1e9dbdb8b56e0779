package sqlserver

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

//go:embed schema.sql
var schemaV1 string

//go:embed schema_2.sql
var schemaV2 string

//go:embed schema_3.sql
var schemaV3 string

// program is this program's generation; a schema may ask for a later one.
const program = 1

// migrations make the tables, step by step: the i-th leads to version i+1. Each only
// adds, so that sidecars of neighbouring versions run together, and does nothing
// where its objects are there.
var migrations = []string{schemaV1, schemaV2, schemaV3}

// rights are what a role needs that runs a sidecar without the right to make tables.
// Object by object, because Babelfish knows no others.
const rights = `-- A role that runs a sidecar (make it first: CREATE ROLE {r}). Programs that only
-- INSERT need INSERT on qsidecar_jobs.
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_jobs TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_failures TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_keys TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_hosts TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_queues TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_returns TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_commits TO {r};
GRANT SELECT, INSERT, UPDATE, DELETE ON {s}.qsidecar_leases TO {r};
GRANT SELECT ON {s}.qsidecar_meta TO {r};
GRANT UPDATE ON {s}.qsidecar_line TO {r};
GRANT EXECUTE ON {s}.qsidecar_now TO {r};
GO
`

// Migrations is the SQL that makes the tables of this version, for people who run it
// by hand, in sqlcmd or a like of it: its batches end with GO. It starts from tables of
// the version from (0: there are none), and does nothing about what is there. It ends
// with what a role needs that runs a sidecar without the right to make tables.
func Migrations(schema, role string, from int) string {
	if schema == "" {
		schema = defaultSchema
	}
	if role == "" {
		role = "qsidecar_sidecar"
	}
	var b strings.Builder
	b.WriteString("SET QUOTED_IDENTIFIER, ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, ARITHABORT, CONCAT_NULL_YIELDS_NULL, XACT_ABORT ON;\nGO\n\n")
	for _, m := range migrations[min(max(from, 0), len(migrations)):] {
		b.WriteString(in(schema, m))
	}
	b.WriteString("\n")
	b.WriteString(strings.ReplaceAll(in(schema, rights), "{r}", quoteName(role)))
	return b.String()
}

// batches are those of a script, without the lines that divide them.
func batches(script string) (all []string) {
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

// migrate makes or completes the tables, where they need it. Any number of sidecars
// may do so at once.
func (s *Store) migrate(ctx context.Context) error {
	version, err := s.describe(ctx, s.db)
	if err == nil && version < len(migrations) {
		if err = s.again(ctx, func() error { return s.complete(ctx) }); err == nil {
			version, err = s.describe(ctx, s.db)
		}
	}
	if err == nil && version < len(migrations) {
		err = fmt.Errorf("the tables in %s, schema %s, are of version %d, and version %d is needed", s.place, s.o.Schema, version, len(migrations))
	}
	return err
}

// describe reads the row that describes the tables; version 0: there are none, or
// not all of them.
func (s *Store) describe(ctx context.Context, on querier) (version int, err error) {
	there := false
	if err := s.plain(ctx, on, "SELECT CASE WHEN OBJECT_ID("+quoteText(quoteName(s.o.Schema)+".qsidecar_meta")+") IS NULL THEN 0 ELSE 1 END;",
		func(rows *sql.Rows) error { return rows.Scan(&there) }); err != nil || !there {
		return 0, err
	}
	oldest := 0 // program that may use them
	if err := s.plain(ctx, on, s.sql.meta, func(rows *sql.Rows) error { return rows.Scan(&version, &oldest, &s.database) }); err != nil {
		return 0, err
	}
	if oldest > program {
		return version, fmt.Errorf("the tables in %s, schema %s, were made by a newer qsidecar (version %d, for programs of generation %d on; this one is of generation %d): upgrade this program",
			s.place, s.o.Schema, version, oldest, program)
	}
	return version, nil
}

const (
	// schemaLock keeps two sidecars from making the tables at once. It goes with
	// the transaction.
	schemaLock = `SET NOCOUNT ON;
SET XACT_ABORT ON;
DECLARE @got int;
EXEC @got = sp_getapplock @Resource = N'qsidecar schema', @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 60000;
SELECT @got AS got;`
	migrateFor = 5 * time.Minute
)

// complete runs the migrations that are missing, in one transaction.
func (s *Store) complete(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, migrateFor)
	defer cancel()
	c, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	t := &tx{s: s, c: c, lane: &lane{}}
	if _, err = c.ExecContext(ctx, s.sql.begin); err == nil {
		err = t.migrate(ctx)
	}
	if err == nil {
		_, err = c.ExecContext(ctx, commitSQL)
	}
	if err != nil {
		t.rollback(ctx, err)
		if batch.Known(err) || whenAgain(err) != never {
			return err
		}
		return fmt.Errorf("making the tables in %s, schema %s (a person with more rights can run what `qsidecar migrate --print` shows): %w", s.place, s.o.Schema, err)
	}
	t.close()
	return nil
}

func (t *tx) migrate(ctx context.Context) error {
	got := 0
	if err := t.s.plain(ctx, t.c, schemaLock, func(rows *sql.Rows) error { return rows.Scan(&got) }); err != nil {
		return err
	}
	if got < 0 {
		return errors.New("another sidecar has been making the tables for a minute (sp_getapplock)")
	}
	version, err := t.s.describe(ctx, t.c)
	if err != nil {
		return err
	}
	for ; version < len(migrations); version++ {
		for _, text := range batches(in(t.s.o.Schema, migrations[version])) {
			if _, err := t.c.ExecContext(ctx, text); err != nil {
				return err
			}
		}
	}
	return nil
}
