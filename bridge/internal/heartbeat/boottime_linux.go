package heartbeat

import (
	"time"

	"golang.org/x/sys/unix"
)

var bootClock = suspendClock{now: now, sinceBoot: sinceBoot}

// BootTime is a clock that never jumps and goes on while the machine is suspended. Go's monotonic clock stands still
// then, and a sidecar that was suspended would consider its leases fresh.
func BootTime() time.Duration { return bootClock.read() }

// sinceBoot reads the kernel's clock. This is a system call, because the vDSO has no CLOCK_BOOTTIME.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("CLOCK_BOOTTIME: " + err.Error()) // always available since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}
