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
var schemaSQL string

//go:embed rename.sql
var renameSQL string

const (
	// Latest is the version of the tables that this program creates and needs.
	Latest = 5

	// Preview is the version of the last preview, which rename.sql leads to Latest.
	Preview = 2

	// Program is the generation of this program. A schema can require a later one.
	Program = 2
)

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
	switch {
	case from <= 0:
		b.WriteString(Fresh())
	case from == Preview:
		b.WriteString(Rename())
	case from < Latest:
		return "-- " + tooOld(from) + "\n"
	}
	fmt.Fprintf(&b, `
-- A user that runs a sidecar (create it first: CREATE USER %[2]s IDENTIFIED BY …).
-- Programs that only INSERT need INSERT on qsidecar_jobs.
GRANT SELECT, INSERT, UPDATE, DELETE ON %[1]s.* TO %[2]s;
`, QuoteName(database), user)
	return b.String()
}

// Fresh returns the SQL that creates all tables. It can be run again after an interruption:
// the server commits after every statement of it.
func Fresh() string { return strings.ReplaceAll(schemaSQL, "{position}", Position) }

var (
	guarded = regexp.MustCompile(`(?s)-- only with (\w+)\.(\w+)\n(.*?);`)
	drops   = regexp.MustCompile(`\{drop (\w+)\}`)
	checks  = regexp.MustCompile(`\{check ([^}]*)\}`)
)

// Rename returns the SQL that leads from the tables of Preview to those of Latest. A statement that
// needs a column of the old name is a text that the server prepares only if the column exists.
func Rename() string {
	return guarded.ReplaceAllStringFunc(renameSQL, func(part string) string {
		m := guarded.FindStringSubmatch(part)
		text := QuoteText(strings.Join(strings.Fields(m[3]), " "))
		text = drops.ReplaceAllStringFunc(text, func(s string) string { return dropCheck(m[1], drops.FindStringSubmatch(s)[1]) })
		text = checks.ReplaceAllStringFunc(text, func(s string) string { return addCheck(m[1], checks.FindStringSubmatch(s)[1]) })
		return fmt.Sprintf("SET @qsidecar_sql = IF(EXISTS (SELECT 1 FROM information_schema.columns\n"+
			"  WHERE table_schema = DATABASE() AND table_name = %s AND column_name = %s),\n  CONCAT(%s), 'DO 0');\n"+
			"PREPARE qsidecar_statement FROM @qsidecar_sql;\nEXECUTE qsidecar_statement;\nDEALLOCATE PREPARE qsidecar_statement;",
			QuoteText(m[1]), QuoteText(m[2]), text)
	})
}

const isMariaDB = "VERSION() LIKE '%MariaDB%'"

// dropCheck is the part of a CONCAT that drops a CHECK if it exists. MariaDB keeps the CHECK of a column
// with the column, and replaces it with the column's definition.
func dropCheck(table, name string) string {
	return "', IF(EXISTS (SELECT 1 FROM information_schema.table_constraints WHERE constraint_schema = DATABASE() AND table_name = " + QuoteText(table) +
		"\n  AND constraint_name = " + QuoteText(name) + "), IF(" + isMariaDB + ", 'DROP CONSTRAINT " + name + ",', 'DROP CHECK " + name + ",'), ''), '"
}

// addCheck is the part of a CONCAT that ends the definition of a column with a CHECK. Its name is the one
// that CREATE TABLE gives it.
func addCheck(table, condition string) string {
	return "', IF(" + isMariaDB + ", 'CHECK (" + condition + ")', ', ADD CONSTRAINT " + table + "_chk_1 CHECK (" + condition + ")'), '"
}

// tooOld returns what to do about tables of a version before Preview.
func tooOld(version int) string {
	return fmt.Sprintf("they are of version %d: first start the last preview of qsidecar, which updates them to version %d, then this program", version, Preview)
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

// Read reads the row that describes the tables. If the tables need a later program, or are of a preview before
// the last one, it returns an error together with Meta.
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
	if err == nil && version < Latest && version != Preview {
		err = fmt.Errorf("can't update the tables in %s: %s", place, tooOld(version))
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
func advance(ctx context.Context, c Conn, place, database string) error {
	lock := "qsidecar schema " + database
	if len(lock) > 64 {
		lock = lock[:64]
	}
	got, err := c.Rows(ctx, "SELECT GET_LOCK(?, ?)", lock, int64(lockSeconds))
	switch {
	case NoUserLocks(err):
		for range unlockedTries {
			if err = runMissing(ctx, c, place); err == nil || ctx.Err() != nil {
				break
			}
		}
		return err
	case err != nil:
		return err
	case len(got) != 1 || got[0][0].String != "1":
		return fmt.Errorf("another sidecar has been creating the tables in %s for longer than %d s: SHOW PROCESSLIST shows the session that holds the lock %q", place, lockSeconds, lock)
	}
	return runMissing(ctx, c, place)
}

// runMissing runs the missing migrations. It can be repeated after any statement.
func runMissing(ctx context.Context, c Conn, place string) error {
	meta, err := Read(ctx, c, place)
	if err != nil {
		return err
	}
	script, from := Fresh(), ""
	switch meta.Version {
	case Latest: // another sidecar was faster
		return nil
	case Preview:
		script, from = Rename(), fmt.Sprintf(" --from %d", Preview)
	}
	for _, statement := range Statements(script) {
		if err := c.Exec(ctx, statement); err != nil {
			return fmt.Errorf("creating the tables in %s (a person with more rights can run what `qsidecar migrate --print%s` shows): %w", place, from, err)
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
