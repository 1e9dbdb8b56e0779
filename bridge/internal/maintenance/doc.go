// Package maintenance promotes due jobs, reaps expired leases and prunes finished jobs of one database, in batches.
//
// It knows the heartbeat, which names the sidecars to give up, and no commits. Start reading at Maintainer.
package maintenance
