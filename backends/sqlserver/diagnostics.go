package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlserver/internal/dialect"
)

// This file has the methods of a Store that package diagnose uses, besides the exported methods that package backends
// names.

// Setup describes how a Store uses its database.
type Setup struct {
	Schema    string
	Server    string // the version and edition
	Name      string // of the database
	Level     int    // the database's compatibility level
	Babelfish bool
}

// Setup returns how the Store uses its database.
func (s *Store) Setup() Setup {
	return Setup{Schema: s.o.Schema, Server: s.server.version, Name: s.server.name, Level: s.server.level, Babelfish: s.server.babelfish}
}

// Session runs f with a connection that is not used again: f can change settings that a reset does not reliably undo.
// Errors have the kinds that package backends names.
func (s *Store) Session(ctx context.Context, f func(ctx context.Context, c *sql.Conn) error) error {
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := s.db.Conn(ctx)
	if err != nil {
		return s.Outcome(ctx, err)
	}
	defer discard(c)
	return s.Outcome(ctx, f(ctx, c))
}

// Rows runs a query without parameters and calls f for each row.
func (s *Store) Rows(ctx context.Context, c *sql.Conn, query string, f func(rows *sql.Rows) error) error {
	return s.plain(ctx, c, query, f)
}

// Statement returns a statement of sql/diagnose.sql.
func (s *Store) Statement(name string) string { return s.sql.examine[name] }

// ReadCatalog reads the catalogue's entries for a table: sql/adopt.sql. It calls each of sets with one result set.
// After a temporary error it starts again with the first set.
func (s *Store) ReadCatalog(ctx context.Context, schema, name string, sets ...func(rows *sql.Rows) error) error {
	c := call{piece: s.sql.describe, args: []any{mssql.NVarCharMax(schema), mssql.NVarCharMax(name)}}
	for _, read := range sets {
		c.read = append(c.read, read)
	}
	return s.Again(ctx, func(ctx context.Context) error { return s.once(ctx, c) })
}

// ExplainBatch returns a batch whose plan shows that of the statement: its arguments are
// variables. The sidecar's own tables need not exist.
func (s *Store) ExplainBatch(st *backends.Statement) (string, error) {
	q, err := prepare(1, st)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("DECLARE @now datetime2(6) = SYSUTCDATETIME();\n")
	for _, p := range q.params {
		fmt.Fprintf(&b, "DECLARE @%s %s;\n", p.name, p.kind)
	}
	for _, c := range s.sql.knowing([]call{q.call}) {
		b.WriteString(c.text + "\n")
	}
	return b.String(), nil
}

// ClaimBatch returns the batch that claims a job of the queue: its parameters are
// variables.
func (s *Store) ClaimBatch(queue string) string { return s.claimStatement(queue) }

// IsNarrow reports whether the column's texts can lack letters of Unicode.
func IsNarrow(c backends.Column) bool { return dialect.Narrow(c) }

// Broken reports whether the connection is unusable after the error.
func Broken(err error) bool { return broken(err) }

// ErrorNumbers returns the numbers of all errors in a server's reply.
func ErrorNumbers(err error) []int32 { return numbers(err) }

// Message returns the texts of a server's errors with their numbers.
func Message(e mssql.Error) string { return words(e) }
