// Package mapping has the mapping of an adopted queue: what the user wrote (Table), and the
// same after it was checked against the catalogue of the database (Mapping).
//
// A mapping gives columns their roles, states their values, and a queue the values that all
// its rows have in common. Check finds everything that does not fit: missing columns, types
// that cannot hold their role, constants that a column cannot hold, missing rights. It runs
// no statements. The package uses backends and nothing else of this project.
//
// Start reading at Table in config.go, then Check in check.go.
package mapping
