package queueset

import (
	"math"
	"sync"
	"time"
)

// Budget limits how many notifications the sidecars of a database send together. Each of them reaches every sidecar,
// so without a limit their cost would grow with the square of the number of sidecars. Each sidecar hears what the
// others send, and so all Budgets agree.
type Budget struct {
	mu       sync.Mutex
	sidecars int
	left     float64 // notifications that can be sent at once; < 0: more were sent than allowed
	at       time.Time
}

const (
	deliveries = 4000 // how often notifications reach a sidecar in a second, all sidecars together
	burst      = 0.25 // in seconds: what the sidecars can save up
	debt       = 10   // in seconds
)

// SetSidecars sets the number of sidecars of the database.
func (b *Budget) SetSidecars(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sidecars = n
}

// Estimate returns how many random 64-bit numbers there are if last is the n-th smallest of them as a signed number.
func Estimate(n int, last int64) int {
	part := (float64(last) - math.MinInt64) / (1 << 64)
	return int(float64(n-1)/max(part, 1e-6)) + 1
}

// Allows reports whether the sidecar can send a notification.
func (b *Budget) Allows(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(now)
	return b.left > 0
}

// Spend records notifications that any sidecar sent.
func (b *Budget) Spend(now time.Time, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rate := b.refill(now)
	b.left = max(b.left-float64(n), -debt*rate)
}

// refill returns the rate. b.mu is held.
func (b *Budget) refill(now time.Time) (rate float64) {
	rate = deliveries / float64(max(b.sidecars, 1))
	most := max(burst*rate, 1)
	if b.at.IsZero() {
		b.left = most
	} else {
		b.left = min(b.left+rate*max(now.Sub(b.at), 0).Seconds(), most)
	}
	b.at = now
	return rate
}
