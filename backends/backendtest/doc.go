// Package backendtest is the conformance suite of package backends. It holds every engine to the
// promises that the comments of package backends make.
//
// # For the author of a new engine
//
// Write one test that calls [Run] with a function that returns a [Database]: an empty database and the hooks that the tests need,
// such as a clock that moves. Start with backendtest.go, which describes the hooks. The memory backend's test is the shortest example.
//
// Each file has one topic, and each test is named after the promise that it checks. Run them in this order while you build:
//
//   - values.go, order.go, keys.go, settle.go: store, claim and settle jobs
//   - attempts.go, leases.go, claim_limits.go: attempts, back-off, lease times, size limits
//   - maintenance.go, retention.go, sidecars.go: promote, reap, prune, heartbeats, eviction
//   - prefetch.go, failed_counts.go: jobs that are claimed before a worker asked, and what failed
//   - inspect.go, commands.go and package operator: what an operator sees and does, counters of round trips
//   - faults.go, concurrency.go, late_commits.go, locked_rows.go, obstacles.go, invalid_values.go, emptied.go: lost connections, races,
//     transactions that commit late, rows that another program has locked, changes that the database refuses, rows that the sidecar
//     can't use, tables that another program empties
//   - alone.go: the last attempt of a job that can have ended its worker
//
// The helpers of the tests are in kit.go. An engine's own tests also use checks.go ([CheckRelocation], [CheckNeighbours]), and the
// packages cost and fleet, which measure what commits and idle sidecars cost the database.
//
// The package may use package backends and the test helpers below internal, but no engine. If you
// add a promise to package backends, add its test here.
package backendtest
