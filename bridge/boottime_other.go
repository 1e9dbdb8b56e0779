//go:build !linux

package bridge

import "time"

var processStart = time.Now()

// bootTime falls back on Go's monotonic clock, which on some systems stands
// still while the machine is suspended: the database's own check of the host's
// row still keeps a claim made after that from succeeding.
func bootTime() time.Duration { return time.Since(processStart) }
