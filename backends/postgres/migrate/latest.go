//go:build !qsidecar_next_schema

package migrate

// Latest is the version of the tables that this program creates and needs.
const Latest = Base

// migrations holds the migrations: the i-th leads from version Base+i to the next one. See latest_next.go.
var migrations []Migration
