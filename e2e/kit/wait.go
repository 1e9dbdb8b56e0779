package kit

import (
	"bytes"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// WaitProgress waits for done. The time limit applies to each change of the number that `look`
// returns, not to the whole wait.
func WaitProgress(t testing.TB, what string, look func() (now int, done bool)) {
	t.Helper()
	last, over := -1, false
	for !over {
		testwait.Until(t, what, func() bool {
			now, done := look()
			changed := now != last
			last, over = now, done
			return done || changed
		})
	}
}

// Monotonic returns a clock that all processes of this machine share, in nanoseconds.
func Monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // only if the kernel does not have the clock
	}
	return ts.Nano()
}

// Since returns the time since a reading of Monotonic.
func Since(at int64) time.Duration { return time.Duration(Monotonic() - at) }

// Pace is the pause of a worker process before it tries again.
func Pace() { time.Sleep(5 * time.Millisecond) }

// PaceRefused is the pause of a worker or producer whose request a sidecar refused, because it doesn't reach the database for example. A failover
// lasts for many seconds, in which requests prove nothing and take the processor that the servers need.
func PaceRefused() { time.Sleep(50 * time.Millisecond) }

// IsRunning reports whether a process exists and isn't a zombie.
func IsRunning(t testing.TB, pid string) bool {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, state, ok := bytes.Cut(stat, []byte(") "))
	return ok && state[0] != 'Z' && state[0] != 'X'
}
