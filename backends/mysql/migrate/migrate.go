// Package migrate creates and updates the tables of a sidecar in a MySQL or MariaDB
// database, and prints the same SQL for a DBA.
//
// Package mysql imports it to open a database, and backends/mysql/diagnose to check one.
// It imports neither: its connection is an interface. Start reading at Run.
package migrate

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"
)

//go:embed schema.sql
var schemaV1 string

//go:embed schema_2.sql
var schemaV2 string

// program is the generation of this program. A schema can require a later one.
const program = 1

// migrations holds the steps: the i-th leads to version i+1. Each only adds, so that
// sidecars of neighbouring versions work side by side. Each can be run again after an
// interruption: the server commits after every statement of it.
var migrations = []string{schemaV1, schemaV2}

// Latest is the version of the tables that this program creates and needs.
var Latest = len(migrations)

// Position is the expression for a new position: see schema.sql.
const Position = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))`

// SQL returns a script for the mysql client that leads from the tables of version `from` (0: there are
// none) to those of Latest. It ends with the grants that a user needs to run a sidecar without the right
// to create tables. user is NAME or NAME@HOST; if it is empty, it is qsidecar_sidecar.
func SQL(database, user string, from int) string {
	if user == "" {
		user = "qsidecar_sidecar"
	}
	name, host, ok := strings.Cut(user, "@")
	if !ok {
		host = "%"
	}
	user = QuoteText(strings.Trim(name, "'`")) + "@" + QuoteText(strings.Trim(host, "'`"))
	var b strings.Builder
	fmt.Fprintf(&b, "USE %s;\n\n", QuoteName(database))
	for version := max(from, 0) + 1; version <= Latest; version++ {
		b.WriteString(Step(version))
	}
	fmt.Fprintf(&b, `
-- A user that runs a sidecar (create it first: CREATE USER %[2]s IDENTIFIED BY …).
-- Programs that only INSERT need INSERT on qsidecar_jobs.
GRANT SELECT, INSERT, UPDATE, DELETE ON %[1]s.* TO %[2]s;
`, QuoteName(database), user)
	return b.String()
}

// Step returns the SQL that leads to a version from the previous one.
func Step(version int) string {
	return strings.ReplaceAll(migrations[version-1], "{position}", Position)
}

// QuoteText quotes a text as a string literal.
func QuoteText(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", "''").Replace(s) + "'"
}

// QuoteName quotes an identifier.
func QuoteName(s string) string { return "`" + strings.ReplaceAll(s, "`", "``") + "`" }

// Conn is a connection to the server. Its errors wrap those of the driver.
type Conn interface {
	Exec(ctx context.Context, statement string) error
	Rows(ctx context.Context, query string, args ...any) ([][]sql.NullString, error)
}

// Meta is the row that describes the tables.
type Meta struct {
	Version  int    // 0: there are no tables, or not all
	Database string // backends.Info.Database
}

// Run creates the tables in the database with that name, or updates them to Latest, and returns their
// description. Any number of sidecars can do so at the same time. Error messages contain
// place, the address without secrets.
func Run(ctx context.Context, c Conn, place, database string) (Meta, error) {
	meta, err := Read(ctx, c, place)
	if err == nil && meta.Version < Latest {
		if err = advance(ctx, c, place, database); err == nil {
			meta, err = Read(ctx, c, place)
		}
	}
	if err == nil && meta.Version < Latest {
		err = fmt.Errorf("the tables in %s are of version %d, and version %d is needed", place, meta.Version, Latest)
	}
	return meta, err
}

// Read reads the row that describes the tables. If the tables need a later program, it returns an error
// together with Meta.
func Read(ctx context.Context, c Conn, place string) (m Meta, err error) {
	rows, err := c.Rows(ctx, "SELECT version, min_program, `database` FROM qsidecar_meta")
	if myErr, ok := errors.AsType[*mysql.MySQLError](err); ok && myErr.Number == 1146 { // no such table
		return Meta{}, nil
	}
	if err != nil || len(rows) == 0 {
		return Meta{}, err
	}
	version, err1 := strconv.Atoi(rows[0][0].String)
	oldest, err2 := strconv.Atoi(rows[0][1].String) // the oldest program that can use the tables
	m = Meta{Version: version, Database: rows[0][2].String}
	if err = errors.Join(err1, err2); err == nil && oldest > program {
		err = fmt.Errorf("the tables in %s were created by a newer qsidecar (version %d, for programs of generation %d on; this one is of generation %d): upgrade this program",
			place, version, oldest, program)
	}
	return m, err
}

// lockSeconds is how long another sidecar can take to create the tables.
const lockSeconds = 60

// advance runs the missing migrations. The lock ends with the connection.
func advance(ctx context.Context, c Conn, place, database string) error {
	lock := "qsidecar schema " + database
	if len(lock) > 64 {
		lock = lock[:64]
	}
	got, err := c.Rows(ctx, "SELECT GET_LOCK(?, ?)", lock, int64(lockSeconds))
	if err != nil {
		return err
	}
	if len(got) != 1 || got[0][0].String != "1" {
		return fmt.Errorf("another sidecar has been creating the tables in %s for longer than %d s: SHOW PROCESSLIST shows the session that holds the lock %q", place, lockSeconds, lock)
	}
	meta, err := Read(ctx, c, place)
	if err != nil {
		return err
	}
	for version := meta.Version + 1; version <= Latest; version++ {
		for _, statement := range Statements(Step(version)) {
			if err := c.Exec(ctx, statement); err != nil {
				return fmt.Errorf("creating the tables in %s (a person with more rights can run what `qsidecar migrate --print` shows): %w", place, err)
			}
		}
	}
	return nil
}

var comment = regexp.MustCompile(`(?m)--[^\n]*$`)

// Statements splits a script of SQL, without its comments.
func Statements(script string) (all []string) {
	for s := range strings.SplitSeq(comment.ReplaceAllString(script, ""), ";") {
		if s = strings.TrimSpace(s); s != "" {
			all = append(all, s)
		}
	}
	return all
}
