package quota

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestBrakes shows that a few rejected connections get their error without a delay. Many of one user are slowed down,
// and never for long.
func TestBrakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b RejectLimiter
		const one, other = 1, 2
		for range rejectBurst - 1 {
			if d := b.Delay(one, 0); d > 0 {
				t.Fatalf("one of the first refusals waits %v", d)
			}
		}
		b.Delay(one, 0)
		if d := b.Delay(one, 4<<20); d < 100*time.Millisecond || d > maxRejectDelay {
			t.Errorf("4 MiB for nothing cost %v", d)
		}
		for range 1000 {
			if d := b.Delay(one, 4<<20); d > maxRejectDelay {
				t.Fatalf("it waits %v", d)
			}
		}
		if d := b.Delay(other, 4<<20); d > 0 {
			t.Errorf("another user waits %v", d)
		}
		for uid := range uint32(2 * maxRejectedUsers) {
			b.Delay(uid, 0)
		}
		if n := len(b.users); n > maxRejectedUsers {
			t.Errorf("%d users are kept in mind", n)
		}
	})
}
