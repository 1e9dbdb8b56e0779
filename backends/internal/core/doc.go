// Package core holds what all SQL engines share: how a batch of writes and claims becomes
// one transaction, how long a transaction is retried, what maintenance does and in which
// order, how operators' commands run in batches, and how statistics are estimated.
//
// An engine implements Driver and Tx: its SQL, its error classes and its way to find out
// what became of a commit. It embeds a Store, which implements backends.Backend,
// backends.Inspector and CommitWith of backends.Adopter.
//
// The package contains no SQL and opens no connection. It uses only the package backends and some of
// backends/internal: cursor, and the tables of schedules, batches and progress.
//
// Start reading with Driver and Tx (driver.go), then follow a batch through commit.go. The
// rules for a job whose attempt ends are in row.go; they call package backends for the
// back-off and the limit of attempts.
package core
