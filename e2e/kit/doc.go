// Package kit has the helpers of the end-to-end tests. A test starts with a Site (sidecar.go): a
// database and its sidecars. wire.go has connections, cli.go and work.go commands, worker.go and
// client_worker.go worker processes, crash_run.go the crash runs, and postgres.go, mysql.go and
// sqlite.go the servers. checker.go checks the histories of crash runs.
package kit
