//go:build qsidecar_previous_schema

package postgres

// This file stands in the place of latest.go in a program that is built for one
// test: that sidecars of neighbouring schema versions run together (e2e,
// TestPostgresRollingUpgrade). It is this program with all that it does by the
// last migration taken out: whoever adds a migration moves here what latest.go
// had before. It is no older release, because a test cannot rely on getting one:
// CI clones without history. What it proves is what a migration may break: a
// program's statements beside tables and rows of the next version.

const latest = 3
