// Package kit holds what the end-to-end tests share: a Site (a database and its
// sidecars), a Sidecar process, a Conn that speaks the protocol, worker processes, crash
// runs and the checker of their histories, and the database servers.
package kit
