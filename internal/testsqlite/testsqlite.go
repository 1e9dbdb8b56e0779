// Package testsqlite does to SQLite databases in tests what the tools of SQLite do.
package testsqlite

import (
	"database/sql"
	"errors"
	"testing"

	"modernc.org/sqlite"
)

// Restore copies a backup into an open database, as `.restore` of SQLite's shell does.
func Restore(t testing.TB, db *sql.DB, backup string) {
	t.Helper()
	c, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = c.Raw(func(driver any) error {
		b, err := driver.(interface {
			NewRestore(from string) (*sqlite.Backup, error)
		}).NewRestore(backup)
		if err != nil {
			return err
		}
		_, err = b.Step(-1) // all pages
		return errors.Join(err, b.Finish())
	})
	if err := errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
}
