//go:build !linux

package heartbeat

import "time"

var processStart = time.Now()

// BootTime falls back to Go's monotonic clock, which on some systems stands still while the machine is suspended. A
// claim after a suspension still can't succeed, because the database checks the host's row itself.
func BootTime() time.Duration { return time.Since(processStart) }
