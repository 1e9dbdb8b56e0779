// Package e2e and the packages below it run the built binary as users do: with real processes,
// sockets and database servers, and with kills. Tests of single packages are in those packages.
//
//	journeys   what most users do, end to end (make test runs it)
//	crash      killed workers, sidecars and servers; suspended ones; durability; upgrades
//	network    databases that are disconnected, silent, stopped or late; wake-ups; idle cost
//	adopted    queues in tables that another application owns
//	clients    the client libraries and examples
//	config     reloads, secrets, limits, hostile input
//	cli        check, work and stdio in detail
//	metrics    metrics, logs, traces
//	web        the web page, in a browser
//	system     systemd, packages, releases, socket paths
//	kit        the helpers that all of them use
//
// QSIDECAR_BIN names the binary. If it is not set, scripts/build.sh builds one. QSIDECAR_SOAK=1
// selects the full sizes.
package e2e
