//go:build !qsidecar_previous_schema

package postgres

// latest is the version of the tables that this program makes and needs.
const latest = 4
