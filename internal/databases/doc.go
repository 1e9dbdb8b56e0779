// Package databases opens the databases of a config, with the adopted tables of its queues.
//
// It uses config, engines and backends/adopted. Start reading at Open.
package databases
