// Package e2e and the folders below it drive the built binary as users do: real
// processes, real sockets, real database servers, and kills. The packages of the program
// have their own tests beside them.
//
//	journeys   what most users do, end to end (make test runs it)
//	crash      killed workers, sidecars and servers; suspended ones; durability; upgrades
//	network    databases that are cut off, silent, stopped or late; wake-ups; idle cost
//	adopted    queues in tables that another application owns
//	clients    the client libraries and examples
//	config     reloads, secrets, limits, hostile input
//	cli        check, work and stdio in detail
//	metrics    metrics, logs, traces
//	system     systemd, packages, releases, socket paths
//	kit        what they share
//
// QSIDECAR_BIN names the binary; if it is not set, scripts/build.sh builds one.
// QSIDECAR_SOAK=1 asks for the full sizes.
package e2e
