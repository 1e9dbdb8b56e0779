//go:build qsidecar_next_schema

package migrate

import _ "embed"

// This file replaces latest.go in a program that is built for one test: sidecars of
// neighbouring schema versions run together (e2e, TestPostgresRollingUpgrade). The
// program is this one with one more migration. The test can't use a real older release:
// CI clones without history. The test covers what a migration can break: this program's
// statements on tables and rows of the next version.

// Latest is the version of the tables that this program creates and needs.
const Latest = Base + 1

//go:embed testdata/next.sql
var nextSQL string

var migrations = []Migration{{SQL: nextSQL, Indexes: []Index{{"qsidecar_test_index", "{s}.qsidecar_failures (at, cause)"}}}}
