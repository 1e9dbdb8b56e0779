package mysql

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
)

//go:embed schema.sql
var schemaV1 string

//go:embed schema_2.sql
var schemaV2 string

// program is this program's generation; a schema may ask for a later one.
const program = 1

// migrations make the tables, step by step: the i-th leads to version i+1. Each
// only adds, so that sidecars of neighbouring versions run together, and each can
// be run again after it broke off: the server commits after every statement of it.
var migrations = []string{schemaV1, schemaV2}

// Migrations is the SQL that makes the tables of this version out of those of the
// version from (0: there are none) in the database that the URL names, for people
// who run it by hand. It ends with what a user needs that runs a sidecar without
// the right to make tables: NAME or NAME@HOST, empty: qsidecar_sidecar.
func Migrations(url, user string, from int) string {
	database := "qsidecar"
	if c, err := configure(&Options{URL: url, Log: slog.New(slog.DiscardHandler)}); err == nil {
		database = c.DBName
	}
	if user == "" {
		user = "qsidecar_sidecar"
	}
	name, host, ok := strings.Cut(user, "@")
	if !ok {
		host = "%"
	}
	user = quoteText(strings.Trim(name, "'`")) + "@" + quoteText(strings.Trim(host, "'`"))
	var b strings.Builder
	fmt.Fprintf(&b, "USE %s;\n\n", quoteName(database))
	for _, m := range migrations[min(max(from, 0), len(migrations)):] {
		b.WriteString(complete(m))
	}
	fmt.Fprintf(&b, `
-- A user that runs a sidecar (make it first: CREATE USER %[2]s IDENTIFIED BY …).
-- Programs that only INSERT need INSERT on qsidecar_jobs.
GRANT SELECT, INSERT, UPDATE, DELETE ON %[1]s.* TO %[2]s;
`, quoteName(database), user)
	return b.String()
}

func complete(sql string) string { return strings.ReplaceAll(sql, "{position}", position) }

func quoteText(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", "''").Replace(s) + "'"
}

func quoteName(s string) string { return "`" + strings.ReplaceAll(s, "`", "``") + "`" }

// migrate makes or completes the tables, where they need it. Any number of
// sidecars may do so at once.
func (s *Store) migrate(ctx context.Context) error {
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := s.dial(ctx, nil)
	if err != nil {
		return err
	}
	defer c.close()
	version, err := s.meta(ctx, c)
	if err == nil && version < len(migrations) {
		if err = s.complete(ctx, c); err == nil {
			version, err = s.meta(ctx, c)
		}
	}
	if err == nil && version < len(migrations) {
		err = fmt.Errorf("the tables in %s are of version %d, and version %d is needed", s.place, version, len(migrations))
	}
	return err
}

// meta reads the row that describes the tables; version 0: there are none, or not all.
func (s *Store) meta(ctx context.Context, c *conn) (version int, err error) {
	oldest := 0 // program that may use them
	err = c.query(ctx, "SELECT version, min_program, `database` FROM qsidecar_meta", nil, []func(r *result) error{func(r *result) error {
		ok, err := r.next()
		if ok {
			version, oldest, s.database = int(r.int(0)), int(r.int(1)), r.text(2)
		}
		return err
	}})
	if isCode(err, 1146) {
		return 0, nil
	}
	if err == nil && oldest > program {
		err = fmt.Errorf("the tables in %s were made by a newer qsidecar (version %d, for programs of generation %d on; this one is of generation %d): upgrade this program",
			s.place, version, oldest, program)
	}
	return version, err
}

// schemaPatience is how long another sidecar may take to make the tables, in seconds.
const schemaPatience = 60

func (s *Store) complete(ctx context.Context, c *conn) error {
	lock := "qsidecar schema " + s.config.DBName
	if len(lock) > 64 {
		lock = lock[:64]
	}
	got := int64(0)
	if err := c.query(ctx, "SELECT GET_LOCK(?, ?)", []any{lock, int64(schemaPatience)}, []func(r *result) error{func(r *result) error {
		ok, err := r.next()
		if ok {
			got = r.int(0)
		}
		return err
	}}); err != nil {
		return err
	}
	if got != 1 {
		return fmt.Errorf("another sidecar has been making the tables in %s for longer than %d s: see SHOW PROCESSLIST for who holds the lock %q", s.place, schemaPatience, lock)
	}
	version, err := s.meta(ctx, c)
	for ; err == nil && version < len(migrations); version++ {
		for _, statement := range split(complete(migrations[version])) {
			if err = c.exec(ctx, statement); err != nil {
				return fmt.Errorf("making the tables in %s (a person with more rights can run what `qsidecar migrate --print` shows): %w", s.place, err)
			}
		}
	}
	return err // the lock goes with the connection
}

var comment = regexp.MustCompile(`(?m)--[^\n]*$`)

// split takes a script apart into statements.
func split(sql string) (statements []string) {
	for s := range strings.SplitSeq(comment.ReplaceAllString(sql, ""), ";") {
		if s = strings.TrimSpace(s); s != "" {
			statements = append(statements, s)
		}
	}
	return statements
}
