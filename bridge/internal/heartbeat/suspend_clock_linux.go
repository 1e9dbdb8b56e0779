package heartbeat

import (
	"sync/atomic"
	"time"
)

var processStart = time.Now()

const (
	// trustedFor bounds how long the monotonic clock stands for the one that goes on while the machine is suspended.
	trustedFor = 10 * time.Millisecond
	// maxDrift is by how much the wall clock can differ from where the monotonic clock expects it.
	maxDrift = time.Millisecond
)

// suspendClock reads sinceBoot, an expensive clock that goes on while the machine is suspended, only if it can differ from
// the monotonic clock. The kernel adds the time of a suspension to the wall clock and to sinceBoot in one step, and before
// any process continues. So a suspension since the last reading shows as a jump of the wall clock. If someone sets the
// wall clock, sinceBoot is read once more. It is also read again after trustedFor, so that a wall clock that is set back by
// as much as a suspension took hides it for no longer.
type suspendClock struct {
	now       func() clocks
	sinceBoot func() time.Duration
	last      atomic.Pointer[bootReading] // nil: none
}

// clocks are the wall clock and the monotonic clock.
type clocks struct{ wall, monotonic time.Duration }

// bootReading is a reading of all three clocks. It never changes.
type bootReading struct {
	clocks
	boot time.Duration
}

// now reads Go's clocks. It needs no system call.
func now() clocks {
	t := time.Now()
	return clocks{time.Duration(t.UnixNano()), t.Sub(processStart)}
}

// read returns the time since the boot.
func (s *suspendClock) read() time.Duration {
	now, r := s.now(), s.last.Load()
	if r != nil {
		passed := now.monotonic - r.monotonic
		drift := now.wall - r.wall - passed
		if 0 <= passed && passed < trustedFor && -maxDrift < drift && drift < maxDrift {
			return r.boot + passed
		}
	}
	r = &bootReading{now, s.sinceBoot()}
	if s.now().monotonic-now.monotonic < maxDrift { // otherwise the reading is not of one moment
		s.last.Store(r)
	}
	return r.boot
}
