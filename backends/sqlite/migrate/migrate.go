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
var schema string

//go:embed schema_2.sql
var schema2 string

//go:embed schema_3.sql
var schema3 string

//go:embed schema_4.sql
var schema4 string

// The versions of the tables and of the program.
const (
	Latest  = 4 // the version of the tables that this program creates
	Program = 1 // the generation of this program; a schema can require a later generation
)

// SQL returns the script that creates the tables. The script doesn't insert the row of
// qsidecar_meta; Run does.
func SQL() string { return strings.Join(steps, "\n") }

// Step returns the SQL that migrates the tables from version-1 to version.
func Step(version int) string { return steps[version-1] }

var steps = []string{schema, schema2, schema3, schema4}

// Tx is a transaction that holds the write lock.
type Tx interface {
	Query(sql string, row func(values []driver.Value) error) error
	Exec(sql string, args ...any) error
	Script(sql string) error
}

// Run creates the tables, or updates them to Latest, and returns backends.Info.Database.
// path is for error messages.
func Run(t Tx, path string) (database string, err error) {
	var tables, jobs int64
	if err := scan(t, `SELECT count(*) FILTER (WHERE name = 'qsidecar_meta'), count(*) FILTER (WHERE name = 'qsidecar_jobs') FROM sqlite_master WHERE type = 'table'`,
		&tables, &jobs); err != nil {
		return "", err
	}
	if tables == 0 {
		if jobs != 0 {
			return "", fmt.Errorf("%s has a table qsidecar_jobs but no qsidecar_meta: its tables were not created by qsidecar, or only in part", path)
		}
		if err := t.Script(schema); err != nil {
			return "", fmt.Errorf("creating the tables in %s: %w", path, err)
		}
	}
	if database, err = meta(t, path); err != nil {
		return "", err
	}
	return database, upgrade(t, path)
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

// upgrade completes tables of an earlier version. Programs of that version keep working with them.
func upgrade(t Tx, path string) error {
	var objects int64
	if err := scan(t, `SELECT count(*) FROM sqlite_master WHERE name IN ('qsidecar_leases_due', 'qsidecar_usable', 'qsidecar_usable_id')`, &objects); err != nil || objects == 3 {
		return err
	}
	if err := t.Script(strings.Join(steps[1:], "\n")); err != nil {
		return fmt.Errorf("upgrading the tables in %s: %w", path, err)
	}
	return t.Exec(`UPDATE qsidecar_meta SET version = ?1 WHERE version < ?1`, Latest)
}

// meta reads the row that describes the tables. It adds the row if a person ran the schema
// by hand.
func meta(t Tx, path string) (database string, err error) {
	var id [8]byte
	rand.Read(id[:])
	if err := t.Exec(`INSERT INTO qsidecar_meta (one, version, min_program, database) VALUES (1, ?, ?, ?) ON CONFLICT (one) DO NOTHING`,
		Latest, Program, base64.RawURLEncoding.EncodeToString(id[:])); err != nil {
		return "", err
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
