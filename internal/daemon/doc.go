// Package daemon runs a sidecar: it opens the databases of a config, starts the bridge,
// reloads the config, waits for databases that are unreachable at startup, serves the admin
// listener, reports to the service manager, and drains on a signal.
//
// It uses config, databases, logging and bridge. It parses no flags and prints nothing to
// stdout. Start reading at Run.
package daemon
