// Package pipeline carries claims and writes between the sessions of a sidecar and one database.
//
// A Pipeline queues claims until the database has jobs for them (dispatcher, waitQueue). It claims some jobs before a
// worker groups (prefetch). It groups the writes and claims of many sessions into one transaction (committer). It
// records which session holds which lease, keeps the sidecar alive in the database, and runs maintenance.
//
// The package does not depend on sockets, wire messages or permissions. A session is a quota.Session here. You can
// run a Pipeline without a socket, as pipeline_test.go does.
//
// Start reading at Pipeline. claims.go and writes.go have the methods that a session calls, committer.go has the loop
// that commits.
package pipeline
