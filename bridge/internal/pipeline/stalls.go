package pipeline

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	stallCheck = 200 * time.Millisecond // how often a process that runs takes the time
	// stallLimit is the longest time between two checks that counts as running. A pause of a queue applies a second after its
	// reply, and a commit and prefetch can take the rest of that.
	stallLimit = 600 * time.Millisecond
)

// stalls notices that the process stood still: the machine was suspended, or the process was stopped or got no CPU.
// What a claim read before that is old, for example that its queue is not paused. A slow database doesn't count, because
// claims from it would start again and again.
type stalls struct {
	clock func() time.Duration // never jumps, and goes on while the machine is suspended
	seen  atomic.Int64         // the last check, by clock; 0: it does not run
	ended atomic.Int64         // the end of the last stall, by clock; 0: none
}

func (s *stalls) run(ctx context.Context) {
	tick := time.NewTicker(stallCheck)
	defer tick.Stop()
	s.seen.Store(int64(s.clock()))
	for {
		select {
		case <-tick.C:
			s.check()
		case <-ctx.Done():
			s.seen.Store(0)
			return
		}
	}
}

// check takes the time, and returns the end of the last stall.
func (s *stalls) check() time.Duration {
	now := s.clock()
	if last := time.Duration(s.seen.Load()); last != 0 {
		if now-last > stallLimit {
			s.ended.Store(int64(now)) // before seen, so that no other check misses it
		}
		s.seen.Store(int64(now))
	}
	return time.Duration(s.ended.Load())
}

// begin returns the present time, for since.
func (s *stalls) begin() time.Duration {
	s.check()
	return s.clock()
}

// since reports whether the process stood still at some time after began.
func (s *stalls) since(began time.Duration) bool { return s.check() > began }
