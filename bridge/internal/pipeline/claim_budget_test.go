package pipeline

import (
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// TestSpace shows that many wait queues share the memory if there is only enough for a few large answers. A wait
// queue whose next job did not fit its share gets a whole answer the next time.
func TestSpace(t *testing.T) {
	lines := make([]waitQueue, 40)
	ask1 := func(left int64) ([]claimGroup, claimBudget) {
		s := claimBudget{left: left, whole: 4 << 20}
		var asks []claimGroup
		for i := range lines {
			if s.reserve(&lines[i]) {
				asks = append(asks, claimGroup{queue: &lines[i]})
			}
		}
		s.divide(asks)
		return asks, s
	}
	asks, s := ask1(8 << 20)
	if len(asks) != 40 || asks[0].bytes != 8<<20/40 || s.left < 0 || s.left > 40 || s.short {
		t.Fatalf("%d lines are asked for, the first for %d bytes; %+v is left", len(asks), asks[0].bytes, s)
	}
	if !asks[3].learn(backends.ClaimResult{More: true}) || !lines[3].large {
		t.Error("a line whose next job is too large is not known as such")
	}
	if asks[4].learn(backends.ClaimResult{}) || lines[4].large {
		t.Error("an empty line is taken for one with a large job")
	}
	asks, s = ask1(8 << 20)
	if len(asks) != 40 || asks[3].bytes != 0 || asks[5].bytes != 4<<20/39 || s.left < 0 {
		t.Errorf("%d lines are asked for, the large one for %d bytes, another one for %d; %+v is left", len(asks), asks[3].bytes, asks[5].bytes, s)
	}
	if asks[3].learn(backends.ClaimResult{Jobs: make([]backends.Job, 1)}); lines[3].large {
		t.Error("a line whose job was small is still large")
	}
	if asks, s = ask1(10 * quota.MinClaim); len(asks) != 10 || !s.short {
		t.Errorf("with little memory %d lines are asked for, %+v", len(asks), s)
	}
	lines = lines[:2]
	if asks, s = ask1(32 << 20); asks[0].bytes != 0 || asks[1].bytes != 0 || s.left != 24<<20 {
		t.Errorf("two lines have %d and %d bytes, %d are left", asks[0].bytes, asks[1].bytes, s.left)
	}
}
