package bridge

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// TestBrakes: a few refused connections are told at once, many are slowed down, of one
// user alone, and never for long.
func TestBrakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b rejectLimiter
		one, other := &unixsocket.Peer{UID: 1}, &unixsocket.Peer{UID: 2}
		for range refusalsBurst - 1 {
			if d := b.delay(one, 0); d > 0 {
				t.Fatalf("one of the first refusals waits %v", d)
			}
		}
		b.delay(one, 0)
		if d := b.delay(one, 4<<20); d < 100*time.Millisecond || d > refusalMost {
			t.Errorf("4 MiB for nothing cost %v", d)
		}
		for range 1000 {
			if d := b.delay(one, 4<<20); d > refusalMost {
				t.Fatalf("it waits %v", d)
			}
		}
		if d := b.delay(other, 4<<20); d > 0 {
			t.Errorf("another user waits %v", d)
		}
		for uid := range uint32(2 * brakedUsers) {
			b.delay(&unixsocket.Peer{UID: uid}, 0)
		}
		if n := len(b.of); n > brakedUsers {
			t.Errorf("%d users are kept in mind", n)
		}
		if d := b.delay(nil, 1<<30); d > 0 {
			t.Errorf("who has no user waits %v", d)
		}
	})
}
