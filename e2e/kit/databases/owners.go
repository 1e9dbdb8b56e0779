// Package databases has servers that a test can harm (postgres.go, mysql.go), and connections to a database as other programs
// than the sidecar have them.
package databases

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"
)

// OwnersDB is a database with an adopted table, from its owner's view.
type OwnersDB struct {
	T testing.TB
	*sql.DB
}

// Open opens a pool of connections to the database of a URL, as the table's own programs do.
func Open(at string) (*sql.DB, error) {
	if file, is := strings.CutPrefix(at, "sqlite:"); is {
		return sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	}
	if !strings.HasPrefix(at, "mysql://") {
		return sql.Open("pgx", at)
	}
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	c := mysql.NewConfig()
	c.User, c.Net, c.Addr, c.DBName = u.User.Username(), "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	c.Passwd, _ = u.User.Password()
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// Owners opens the database until the test ends.
func Owners(t testing.TB, at string) OwnersDB {
	t.Helper()
	db, err := Open(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return OwnersDB{t, db}
}

// Script runs statements. Each must end with a semicolon.
func (o OwnersDB) Script(text string) {
	o.T.Helper()
	for _, statement := range strings.SplitAfter(text, ";") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := o.ExecContext(o.T.Context(), statement); err != nil {
			o.T.Fatalf("%s: %v", statement, err)
		}
	}
}

// Texts returns the first column of a query's rows.
func (o OwnersDB) Texts(query string, args ...any) (all []string) {
	o.T.Helper()
	ctx := context.Background()
	rows, err := o.QueryContext(ctx, query, args...)
	if err != nil {
		o.T.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			o.T.Fatalf("%s: %v", query, err)
		}
		all = append(all, text)
	}
	if err := rows.Err(); err != nil {
		o.T.Fatalf("%s: %v", query, err)
	}
	return all
}

// Deadlocked reports whether the server ended the transaction because of a deadlock.
func Deadlocked(err error) bool {
	e := (*mysql.MySQLError)(nil)
	return errors.As(err, &e) && e.Number == 1213
}
