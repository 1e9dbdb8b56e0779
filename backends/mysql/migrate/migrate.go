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
	"slices"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"
)

//go:embed schema.sql
var schemaSQL string

const (
	base = 1 // the version of the tables that schema.sql creates

	// Latest is the version of the tables that this program creates and needs.
	Latest = base

	// Program is the generation of this program. A schema can require a later one.
	Program = 1
)

// migrations holds the migrations: the i-th leads from version base+i to the next one. They only add, so that sidecars
// of neighbouring versions work side by side. The server commits after each statement that changes a table. So a
// statement that can't be run again begins after a line "-- only without TABLE.COLUMN", which names what it adds.
var migrations [Latest - base]string

// Position is the expression for a new position: see schema.sql.
const Position = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))`

// SQL returns a script for the mysql client that leads from the tables of version `from` (0: there are
// none) to those of Latest, and through later migrations, which tests add. It ends with the grants that a user needs to
// run a sidecar without the right to create tables. user is NAME or NAME@HOST; if it is empty, it is qsidecar_sidecar.
func SQL(database, user string, from int, later ...string) string {
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
	b.WriteString(Script(from, later...))
	fmt.Fprintf(&b, `
-- A user that runs a sidecar (create it first: CREATE USER %[2]s IDENTIFIED BY …).
-- Programs that only INSERT need INSERT on qsidecar_jobs.
GRANT SELECT, INSERT, UPDATE, DELETE ON %[1]s.* TO %[2]s;
`, QuoteName(database), user)
	return b.String()
}

// Script returns the SQL that leads from the tables of version `from` (0: there are none) to the latest ones. It can be
// run again after an interruption: the server commits after every statement of it.
func Script(from int, later ...string) string {
	var b strings.Builder
	if from <= 0 {
		b.WriteString(strings.ReplaceAll(schemaSQL, "{position}", Position))
		from = base
	}
	for i, sql := range slices.Concat(migrations[:], later) {
		if base+i >= from {
			fmt.Fprintf(&b, "\n%s\nUPDATE qsidecar_meta SET version = %d WHERE version = %d;\n", guarded(sql), base+i+1, base+i)
		}
	}
	return b.String()
}

var guard = regexp.MustCompile(`(?s)-- only without (\w+)\.(\w+)\n(.*?);`)

// guarded makes a statement after a line "only without" a text that the server prepares only if the column doesn't exist.
func guarded(sql string) string {
	return guard.ReplaceAllStringFunc(sql, func(part string) string {
		m := guard.FindStringSubmatch(part)
		return fmt.Sprintf("SET @qsidecar_sql = IF(EXISTS (SELECT 1 FROM information_schema.columns\n"+
			"  WHERE table_schema = DATABASE() AND table_name = %s AND column_name = %s), 'DO 0',\n  %s);\n"+
			"PREPARE qsidecar_statement FROM @qsidecar_sql;\nEXECUTE qsidecar_statement;\nDEALLOCATE PREPARE qsidecar_statement;",
			QuoteText(m[1]), QuoteText(m[2]), QuoteText(strings.Join(strings.Fields(m[3]), " ")))
	})
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
// place, the address without secrets. later are migrations that follow Latest; tests set them.
func Run(ctx context.Context, c Conn, place, database string, later ...string) (Meta, error) {
	latest := Latest + len(later)
	meta, err := Read(ctx, c, place)
	if err == nil && meta.Version < latest {
		if err = advance(ctx, c, place, database, later); err == nil {
			meta, err = Read(ctx, c, place)
		}
	}
	if err == nil && meta.Version < latest {
		err = fmt.Errorf("the tables in %s are of version %d, and version %d is needed", place, meta.Version, latest)
	}
	return meta, err
}

// Read reads the row that describes the tables. If the tables need a later program, it returns an error together
// with Meta.
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
	if err = errors.Join(err1, err2); err == nil && oldest > Program {
		err = fmt.Errorf("the tables in %s were created by a newer qsidecar (version %d, for programs of generation %d on; this one is of generation %d): upgrade this program",
			place, version, oldest, Program)
	}
	return m, err
}

// lockSeconds is how long another sidecar can take to create the tables.
const lockSeconds = 60

// unlockedTries is how often the migrations run if there is no lock. A statement fails if another sidecar runs it at the
// same time. The next try leaves it out, so this is more than there are statements.
const unlockedTries = 20

// NoUserLocks reports whether the server refuses GET_LOCK. Percona XtraDB Cluster in strict mode does, and so do some nodes of
// Galera clusters.
func NoUserLocks(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && (e.Number == 1105 || e.Number == 1235)
}

// advance runs the missing migrations. The lock ends with the connection.
func advance(ctx context.Context, c Conn, place, database string, later []string) error {
	lock := "qsidecar schema " + database
	if len(lock) > 64 {
		lock = lock[:64]
	}
	got, err := c.Rows(ctx, "SELECT GET_LOCK(?, ?)", lock, int64(lockSeconds))
	switch {
	case NoUserLocks(err):
		for range unlockedTries {
			if err = runMissing(ctx, c, place, later); err == nil || ctx.Err() != nil {
				break
			}
		}
		return err
	case err != nil:
		return err
	case len(got) != 1 || got[0][0].String != "1":
		return fmt.Errorf("another sidecar has been creating the tables in %s for longer than %d s: SHOW PROCESSLIST shows the session that holds the lock %q", place, lockSeconds, lock)
	}
	return runMissing(ctx, c, place, later)
}

// runMissing runs the missing migrations. It can be repeated after any statement.
func runMissing(ctx context.Context, c Conn, place string, later []string) error {
	meta, err := Read(ctx, c, place)
	if err != nil {
		return err
	}
	from := ""
	if meta.Version > 0 {
		from = fmt.Sprintf(" --from %d", meta.Version)
	}
	for _, statement := range Statements(Script(meta.Version, later...)) { // none if another sidecar was faster
		if err := c.Exec(ctx, statement); err != nil {
			return fmt.Errorf("creating the tables in %s (a person with more rights can run what `qsidecar migrate --print%s` shows, with the option --role and the user of this sidecar): %w", place, from, err)
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
