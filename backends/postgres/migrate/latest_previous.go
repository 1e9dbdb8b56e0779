//go:build qsidecar_previous_schema

package migrate

// This file replaces latest.go in a program that is built for one test: sidecars of
// neighbouring schema versions run together (e2e, TestPostgresRollingUpgrade). The
// program is this one without the last migration. If you add a migration, copy the
// old value of latest.go here. The test can't use a real older release: CI clones
// without history. The test covers what a migration can break: a program's
// statements on tables and rows of the next version.

// Latest is the version of the tables that this program creates and needs.
const Latest = 3
