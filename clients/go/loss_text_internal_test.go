package qsidecar

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// The text names the time limit only if the lease was lost near it: within 100 ms, or within half of a short limit.
func TestLossText(t *testing.T) {
	t.Parallel()
	const late, otherwise = "the job ran longer than its time limit of ", "it was lost"
	for _, c := range []struct {
		limit, took time.Duration
		want        string
	}{
		{0, time.Hour, otherwise},
		{time.Second, 900 * time.Millisecond, otherwise},
		{time.Second, 901 * time.Millisecond, late + "1s"},
		{50 * time.Millisecond, 25 * time.Millisecond, otherwise},
		{50 * time.Millisecond, 26 * time.Millisecond, late + "50ms"},
	} {
		synctest.Test(t, func(t *testing.T) {
			job := protocol.Job{}
			if c.limit > 0 {
				job.TimeoutMS = protocol.Some(c.limit.Milliseconds())
			}
			began := time.Now()
			time.Sleep(c.took)
			if got := lossText(&job, began, otherwise); got != c.want {
				t.Errorf("after %v of %v: %q, want %q", c.took, c.limit, got, c.want)
			}
		})
	}
}
