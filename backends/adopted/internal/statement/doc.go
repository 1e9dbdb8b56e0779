// Package statement has the statements of adopted queues: their text, their arguments, and how
// their answers are read. It builds statements and runs none.
//
// A statement that ends a claim changes a job's row only while that still shows the claim. What
// has no column in the row goes into the job's lease, which the caller saves.
//
// The package uses packages mapping, condition and lease. Start reading at Queue; then
// candidates.go has a claim, settle.go what ends it, insert.go an enqueue, view.go what
// operators see, find.go the searches for rows.
package statement
