// Package adopted runs queues in tables that another application owns, beside that owner's own
// consumers. A Store wraps an engine's backend: managed queues stay the engine's. Data about an
// adopted job for which its table has no column goes into a table of the sidecar's own,
// qsidecar_leases, in the transaction that changes the job's row.
//
// A settle changes the row only while that still shows the claim of the lease: its state, and
// what the claim wrote into the columns in the roles worker, claimed_at and token. Rows without
// a lease are their owner's.
//
// The layers, each a package that uses only those before it:
//
//   - mapping: what the user wrote, checked against the catalogue
//   - internal/query: the names of output columns, and how numbers are read
//   - internal/lease: the rows of qsidecar_leases
//   - internal/condition: the conditions that follow from a mapping
//   - internal/statement: statements and how their answers are read
//   - internal/advise: facts and advice for operators
//   - this package: it runs the statements on an engine, a backends.Adopter
//   - guess, beside them: it proposes a mapping for a table
//
// Start reading at Store in store.go, then Commit in commit.go. The files tx_*.go are about
// queues with `claim_mode: transaction`, whose claims are open transactions.
package adopted
