package quota

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Who is refused is served more slowly, so that one that goes on and on costs the others
// little. A few refusals are answered at once, as they happen to any client.
const (
	rejectBurst      = 100 // at once
	rejectsPerSecond = 200 // after that

	// refusedBytes that were read in vain count as one refusal more.
	bytesPerReject = 64 << 10
	// refusalMost is the longest that the end of a connection is put off.
	maxRejectDelay = time.Second
	// brakedUsers bounds how many users' connections are kept in mind.
	maxRejectedUsers = 1024
)

func NewRejectLimiter() *rate.Limiter { return rate.NewLimiter(rejectsPerSecond, rejectBurst) }

// RejectLimiter count the connections that were refused, or closed for what they sent, by users:
// who connects anew each time is slowed down too.
type RejectLimiter struct {
	mu    sync.Mutex
	users map[uint32]*rate.Limiter
}

// Delay is how long the user's connection waits for its end, in which so many bytes were
// read in vain.
func (b *RejectLimiter) Delay(uid uint32, bytes int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.users[uid]
	if l == nil {
		if b.users == nil || len(b.users) >= maxRejectedUsers {
			b.users = make(map[uint32]*rate.Limiter)
		}
		l = NewRejectLimiter()
		b.users[uid] = l
	}
	r := l.ReserveN(time.Now(), min(1+bytes/bytesPerReject, rejectBurst))
	d := r.Delay()
	if d > maxRejectDelay {
		r.Cancel()
		d = maxRejectDelay
	}
	return d
}
