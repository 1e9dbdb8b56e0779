package quota

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// The server throttles clients that keep sending rejected requests. It does not delay the first few rejections.
const (
	rejectBurst      = 100 // without a delay
	rejectsPerSecond = 200 // after that

	// bytesPerReject is how many bytes read in vain count as one more rejection.
	bytesPerReject = 64 << 10
	// maxRejectDelay is the maximum delay of the end of a connection.
	maxRejectDelay = time.Second
	// maxRejectedUsers is how many users have a limiter at a time.
	maxRejectedUsers = 1024
)

func newRejectLimiter() *rate.Limiter { return rate.NewLimiter(rejectsPerSecond, rejectBurst) }

// RequestLimiter counts the rejected requests of one session. Only one goroutine uses it.
type RequestLimiter struct{ limiter *rate.Limiter } // nil: no request was rejected yet

// Throttle is called after a request was rejected. It delays the reading of the next one. The delay ends early if gone is closed.
func (r *RequestLimiter) Throttle(gone <-chan struct{}) {
	if r.limiter == nil {
		r.limiter = newRejectLimiter()
	}
	d := r.limiter.Reserve().Delay()
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-gone:
	}
}

// RejectLimiter counts rejected connections by user, so that reconnecting does not help.
type RejectLimiter struct {
	mu    sync.Mutex
	users map[uint32]*rate.Limiter
}

// Delay returns how long to delay the end of the user's connection, on which that many bytes were read in vain.
func (r *RejectLimiter) Delay(uid uint32, bytes int) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.users[uid]
	if l == nil {
		if r.users == nil || len(r.users) >= maxRejectedUsers {
			r.users = make(map[uint32]*rate.Limiter)
		}
		l = newRejectLimiter()
		r.users[uid] = l
	}
	wait := l.ReserveN(time.Now(), min(1+bytes/bytesPerReject, rejectBurst))
	d := wait.Delay()
	if d > maxRejectDelay {
		wait.Cancel()
		d = maxRejectDelay
	}
	return d
}
