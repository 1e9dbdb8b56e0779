// Package migrate creates and updates the tables of a sidecar in an SQLite file.
//
// Package sqlite imports it to open a file, and backends/sqlite/diagnose to check one. It
// imports neither: package sqlite gives it a transaction, which holds the write lock.
// Start reading at Run.
package migrate

import (
	"crypto/rand"
	"database/sql/driver"
	_ "embed"
	"encoding/base64"
	"fmt"
	"strings"
)

//go:embed schema.sql
var schemaSQL string

//go:embed rename.sql
var renameSQL string

// The versions of the tables and of the program.
const (
	Latest  = 5 // the version of the tables that this program creates
	Program = 2 // the generation of this program; a schema can require a later generation

	// Preview is the version of the last preview, which rename.sql leads to Latest.
	Preview = 4
)

// SQL returns the script that leads from the tables of a version (0: there are none) to those
// of Latest. The script doesn't insert the row of qsidecar_meta; Run does.
func SQL(from int) string {
	switch {
	case from <= 0:
		return schemaSQL
	case from < Preview:
		return "-- " + TooOld(int64(from)) + "\n"
	case from == Preview:
		return "BEGIN IMMEDIATE;\n\n" + renameSQL + "\nCOMMIT;\n"
	}
	return ""
}

// TooOld returns what to do about tables of a version before Preview.
func TooOld(version int64) string {
	return fmt.Sprintf("they are of version %d: first start the last preview of qsidecar, which updates them to version %d, then this program", version, Preview)
}

// Tx is a transaction that holds the write lock.
type Tx interface {
	Query(sql string, row func(values []driver.Value) error) error
	Exec(sql string, args ...any) error
	Script(sql string) error
}

// Run creates the tables, or updates them to Latest, and returns backends.Info.Database.
// path is for error messages.
func Run(t Tx, path string) (database string, err error) {
	var tables, jobs, preview int64
	if err := scan(t, `SELECT count(*) FILTER (WHERE name = 'qsidecar_meta'), count(*) FILTER (WHERE name = 'qsidecar_jobs'),
		count(*) FILTER (WHERE name = 'qsidecar_hosts') FROM sqlite_master WHERE type = 'table'`,
		&tables, &jobs, &preview); err != nil {
		return "", err
	}
	switch {
	case tables == 0 && jobs != 0:
		return "", fmt.Errorf("%s has a table qsidecar_jobs but no qsidecar_meta: its tables were not created by qsidecar, or only in part", path)
	case tables == 0:
		if err := t.Script(schemaSQL); err != nil {
			return "", fmt.Errorf("creating the tables in %s: %w", path, err)
		}
	case preview != 0:
		if err := rename(t, path); err != nil {
			return "", err
		}
	}
	return meta(t, path)
}

// scan reads the integers of a query's only row into to.
func scan(t Tx, sql string, to ...*int64) error {
	return t.Query(sql, func(values []driver.Value) error {
		for i, v := range values {
			*to[i], _ = v.(int64)
		}
		return nil
	})
}

// rename gives the tables of the last preview their new names.
func rename(t Tx, path string) error {
	var version int64
	if err := scan(t, `SELECT version FROM qsidecar_meta`, &version); err != nil {
		return err
	}
	if version != Preview {
		return fmt.Errorf("can't update the tables in %s: %s", path, TooOld(version))
	}
	err := t.Script(renameSQL)
	if err != nil && (strings.Contains(err.Error(), "error in view") || strings.Contains(err.Error(), "error in trigger")) {
		return fmt.Errorf("can't update the tables in %s to version %d: SQLite can't rename them while a view or trigger in the file is invalid (%w): correct or drop it, and start again", path, Latest, err)
	}
	if err != nil {
		return fmt.Errorf("updating the tables in %s to version %d: %w", path, Latest, err)
	}
	return nil
}

// meta reads the row that describes the tables. It adds the row if a person ran the schema
// by hand.
func meta(t Tx, path string) (database string, err error) {
	var rows int64
	if err := scan(t, `SELECT count(*) FROM qsidecar_meta`, &rows); err != nil {
		return "", err
	}
	// A later version can have other columns, so an existing row is only read.
	if rows == 0 {
		var id [8]byte
		rand.Read(id[:])
		if err := t.Exec(`INSERT INTO qsidecar_meta (singleton, version, min_program, database) VALUES (1, ?, ?, ?) ON CONFLICT (singleton) DO NOTHING`,
			Latest, Program, base64.RawURLEncoding.EncodeToString(id[:])); err != nil {
			return "", err
		}
	}
	err = t.Query(`SELECT version, min_program, database FROM qsidecar_meta`, func(values []driver.Value) error {
		if oldest, _ := values[1].(int64); oldest > Program {
			return fmt.Errorf("the tables in %s were created by a newer qsidecar (schema %d, for programs of generation %d on; this one is of generation %d): upgrade this program",
				path, values[0], oldest, Program)
		}
		database, _ = values[2].(string)
		return nil
	})
	return database, err
}
