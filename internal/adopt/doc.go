// Package adopt is the wizard of `qsidecar adopt`: it examines a table that other programs
// use as a queue, and writes a config for it.
//
// It uses databases, config and backends/adopted/guess, which finds the roles of the
// columns. It changes nothing in the database. Start reading at Propose.
package adopt
