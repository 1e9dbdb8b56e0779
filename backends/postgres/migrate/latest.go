//go:build !qsidecar_next_schema

package migrate

// Latest is the version of the tables that this program creates and needs.
const Latest = Base

// next holds no migration: see latest_next.go.
var next []Migration
