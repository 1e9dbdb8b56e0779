//go:build !linux

package heartbeat

import "time"

var processStart = time.Now()

// BootTime falls back on Go's monotonic clock, which on some systems stands
// still while the machine is suspended: the database's own check of the host's
// row still keeps a claim made after that from succeeding.
func BootTime() time.Duration { return time.Since(processStart) }
