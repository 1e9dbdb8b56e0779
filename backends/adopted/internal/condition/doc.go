// Package condition has the conditions that follow from a mapping: which rows of an adopted
// table belong to a queue, wait, are claimed, can be claimed now, or are dead; in which order
// claims find them; which rows have given ids; and how times and constants are written.
//
// All conditions are SQL text for a WHERE over the table. Those with arguments are built by a
// Builder. The package uses package mapping and the name of the table of leases.
//
// Start reading at Waiting in states.go and Claimable in claimable.go.
package condition
