package quota

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// The server throttles clients that keep sending rejected requests. A few rejections are answered at once.
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

// NewRejectLimiter returns the limiter of one session.
func NewRejectLimiter() *rate.Limiter { return rate.NewLimiter(rejectsPerSecond, rejectBurst) }

// RejectLimiter counts rejected connections by user, so that reconnecting does not help.
type RejectLimiter struct {
	mu    sync.Mutex
	users map[uint32]*rate.Limiter
}

// Delay is how long to put off the end of the user's connection, from which so many bytes were read in vain.
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
