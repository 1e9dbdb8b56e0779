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
	"slices"
	"strings"
)

//go:embed schema.sql
var schemaSQL string

// The versions of the tables and of the program.
const (
	base    = 1    // the version of the tables that schema.sql creates
	Latest  = base // the version of the tables that this program creates
	Program = 1    // the generation of this program; a schema can require a later generation
)

// migrations holds the migrations: the i-th leads from version base+i to the next one. They only add, so that sidecars
// of neighbouring versions work side by side.
var migrations [Latest - base]string

// SQL returns the script that leads from the tables of a version (0: there are none) to those
// of Latest. The script doesn't insert the row of qsidecar_meta; Run does.
func SQL(from int) string {
	script := script(from)
	if from <= 0 || script == "" {
		return script
	}
	return "BEGIN IMMEDIATE;\n" + script + "\nCOMMIT;\n"
}

// script is SQL without a transaction, and through later migrations.
func script(from int, later ...string) string {
	var b strings.Builder
	if from <= 0 {
		b.WriteString(schemaSQL)
		from = base
	}
	for i, sql := range slices.Concat(migrations[:], later) {
		if base+i >= from {
			fmt.Fprintf(&b, "\n%s\nUPDATE qsidecar_meta SET version = %d WHERE version = %d;\n", sql, base+i+1, base+i)
		}
	}
	return b.String()
}

// Tx is a transaction that holds the write lock.
type Tx interface {
	Query(sql string, row func(values []driver.Value) error) error
	Exec(sql string, args ...any) error
	Script(sql string) error
}

// Run creates the tables, or updates them to Latest, and returns backends.Info.Database.
// path is for error messages. later are migrations that follow Latest; tests set them.
func Run(t Tx, path string, later ...string) (database string, err error) {
	var tables, jobs int64
	if err := scan(t, `SELECT count(*) FILTER (WHERE name = 'qsidecar_meta'), count(*) FILTER (WHERE name = 'qsidecar_jobs')
		FROM sqlite_master WHERE type = 'table'`, &tables, &jobs); err != nil {
		return "", err
	}
	switch {
	case tables == 0 && jobs != 0:
		return "", fmt.Errorf("%s has a table qsidecar_jobs but no qsidecar_meta: its tables were not created by qsidecar, or only in part", path)
	case tables == 0:
		if err := t.Script(script(0, later...)); err != nil {
			return "", fmt.Errorf("creating the tables in %s: %w", path, err)
		}
	}
	latest := int64(Latest + len(later))
	version, database, err := meta(t, path, latest)
	if err == nil && version < latest {
		if err = t.Script(script(int(version), later...)); err != nil {
			err = fmt.Errorf("updating the tables in %s to version %d: %w", path, latest, err)
		}
	}
	return database, err
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

// meta reads the row that describes the tables. It adds the row if a person ran the schema
// by hand.
func meta(t Tx, path string, latest int64) (version int64, database string, err error) {
	var rows int64
	if err := scan(t, `SELECT count(*) FROM qsidecar_meta`, &rows); err != nil {
		return 0, "", err
	}
	// A later version can have other columns, so an existing row is only read.
	if rows == 0 {
		var id [8]byte
		rand.Read(id[:])
		if err := t.Exec(`INSERT INTO qsidecar_meta (singleton, version, min_program, database) VALUES (1, ?, ?, ?) ON CONFLICT (singleton) DO NOTHING`,
			latest, Program, base64.RawURLEncoding.EncodeToString(id[:])); err != nil {
			return 0, "", err
		}
	}
	err = t.Query(`SELECT version, min_program, database FROM qsidecar_meta`, func(values []driver.Value) error {
		if oldest, _ := values[1].(int64); oldest > Program {
			return fmt.Errorf("the tables in %s were created by a newer qsidecar (schema %d, for programs of generation %d on; this one is of generation %d): upgrade this program",
				path, values[0], oldest, Program)
		}
		version, _ = values[0].(int64)
		database, _ = values[2].(string)
		return nil
	})
	return version, database, err
}
