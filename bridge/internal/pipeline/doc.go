// Package pipeline carries claims and writes between the sessions of a sidecar and one database.
//
// It has two halves. The schedulers are pure: they have no database, no goroutine and no clock. One decides which queued
// writes the next commit has, and whether it also claims (scheduler.go). The other one decides which waiting claims a commit
// includes, and which of them get the jobs (package dispatch). The executor has the goroutines: it carries out commits, isolates
// members that the database refuses, and answers the others (executor.go, commit.go, refused.go, locked.go).
//
// A Pipeline also records which session holds which lease, keeps the sidecar alive in the database, and runs maintenance.
//
// The package does not depend on sockets, wire messages or permissions. A session is a quota.Session here. You can
// run a Pipeline without a socket, as pipeline_test.go does.
//
// Start reading at Pipeline. claims.go and writes.go have the methods that a session calls. pending.go has a write on its way,
// and all states that it can have.
package pipeline
