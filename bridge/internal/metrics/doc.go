// Package metrics counts what a sidecar does, for Prometheus.
//
// A counter never decreases: not over a reload, and not when its queue or database is no longer configured. Counting
// a job allocates nothing. The gauges, which read the state of a sidecar, are in the package bridge.
//
// The package depends on the types of package backends, and on no part of a pipeline. Start reading at Set and
// Database.
package metrics
