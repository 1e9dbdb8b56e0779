package bridge

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// Who is refused is served more slowly, so that one that goes on and on costs the others
// little. A few refusals are answered at once, as they happen to any client.
const (
	refusalsBurst     = 100 // at once
	refusalsPerSecond = 200 // after that

	// refusedBytes that were read in vain count as one refusal more.
	refusedBytes = 64 << 10
	// refusalMost is the longest that the end of a connection is put off.
	refusalMost = time.Second
	// brakedUsers bounds how many users' connections are kept in mind.
	brakedUsers = 1024
)

func newRejectLimiter() *rate.Limiter { return rate.NewLimiter(refusalsPerSecond, refusalsBurst) }

// slowDown is called after a request was refused: the session is read from more slowly.
func (s *session) slowDown() { pause(s.gone, s.refusals.Reserve().Delay()) }

// brakes count the connections that were refused, or closed for what they sent, by users:
// who connects anew each time is slowed down too.
type rejectLimiter struct {
	mu sync.Mutex
	of map[uint32]*rate.Limiter
}

// delay is how long the user's connection waits for its end, in which so many bytes were
// read in vain.
func (b *rejectLimiter) delay(who *unixsocket.Peer, bytes int) time.Duration {
	if who == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.of[who.UID]
	if l == nil {
		if b.of == nil || len(b.of) >= brakedUsers {
			b.of = make(map[uint32]*rate.Limiter)
		}
		l = newRejectLimiter()
		b.of[who.UID] = l
	}
	r := l.ReserveN(time.Now(), min(1+bytes/refusedBytes, refusalsBurst))
	d := r.Delay()
	if d > refusalMost {
		r.Cancel()
		d = refusalMost
	}
	return d
}

// pause waits, until ctx is done at the most.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
