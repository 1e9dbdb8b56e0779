// Package config turns a YAML file, flags and the environment into the options of a sidecar:
// defaults, validation, durations and sizes, secrets, and what differs between two configs.
// It also watches the files of a config and calls a Reloader when they change.
//
// It opens no database and starts no sidecar. It uses engines for the addresses of
// databases, and bridge and backends/adopted for the options that it produces.
// Start reading at Config and Input.Load.
package config
