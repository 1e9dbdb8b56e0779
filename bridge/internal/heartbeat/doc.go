// Package heartbeat keeps a sidecar alive in one database.
//
// A Heartbeater joins under a new identity, renews it, compares the claimed rows with the lease table, watches the
// heartbeats of the other sidecars, and agrees with them which one reads the queue depths. The package does not
// depend on commits or the handling of sessions. Start reading at Heartbeater, whose comment explains the times.
package heartbeat
