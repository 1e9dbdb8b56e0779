package measure

import (
	"testing"
	"time"
)

// TestCPUOfEndedThreads shows that a measurement never has less than no CPU time, although the kernel rounds that of ended threads.
func TestCPUOfEndedThreads(t *testing.T) {
	before, now := Usage{Self: 19 * time.Millisecond}, Usage{Self: 10 * time.Millisecond, Sidecar: time.Second}
	if got := now.Since(before); got.Self != 0 || got.Sidecar != time.Second {
		t.Errorf("the measurement has %+v", got)
	}
}
