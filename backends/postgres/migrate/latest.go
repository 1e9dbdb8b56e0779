//go:build !qsidecar_previous_schema

package migrate

// Latest is the version of the tables that this program creates and needs.
const Latest = 4
