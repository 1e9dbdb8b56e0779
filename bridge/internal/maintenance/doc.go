// Package maintenance promotes due jobs, reaps expired leases and prunes finished jobs of one database, in batches.
//
// It depends on the heartbeat, which names the sidecars to declare dead, and not on commits. Start reading at
// Maintainer.
package maintenance
