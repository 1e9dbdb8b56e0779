package qsidecar

import (
	"testing"
	"time"
)

func TestEnqueueTimeout(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 2 * time.Second, "0.5": 500 * time.Millisecond, "60": time.Minute, "0": 0, "-1": 0, "2s": 0, "NaN": 0} {
		got, err := enqueueTime(text)
		if got != want || (err != nil) != (want == 0) {
			t.Errorf("QSIDECAR_ENQUEUE_TIMEOUT=%q: %v, %v, want %v", text, got, err, want)
		}
	}
}
