package bridge

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestJobsThatFailTogetherComeBackApart: 400 jobs fail in one moment. Their back-offs differ by up to a tenth, unless the
// config has no jitter. A delay that the worker names has none.
func TestJobsThatFailTogetherComeBackApart(t *testing.T) {
	const jobs, backoff = 400, time.Minute
	for name, x := range map[string]struct {
		jitter float64 // of Options
		nack   string  // the rest of the op; empty: their time runs out
		spread time.Duration
	}{
		"nacked":              {0, "}", backoff / 10},
		"snoozed":             {0, `,"snooze":true}`, backoff / 10},
		"timed out":           {0, "", backoff / 10},
		"half":                {0.5, "}", backoff / 2},
		"no jitter":           {-1, "}", 0},
		"nacked with a delay": {0, `,"delay_ms":60000}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := memory.New()
				o := options(db)
				o.Queues["*"] = Queue{Backoff: backoff, Jitter: x.jitter, Timeout: time.Minute - time.Second}
				s := start(t, o)
				c := s.dial(t)
				c.call(`{"op":"enqueue","jobs":[%s]}`, strings.TrimSuffix(strings.Repeat(`{"queue":"q"},`, jobs), ","))
				var leases []string
				for _, j := range c.call(`{"op":"claim","queue":"q","max":1000}`).Jobs {
					leases = append(leases, fmt.Sprintf("%q", j.Lease))
				}
				if x.nack == "" {
					time.Sleep(time.Minute)
				} else {
					c.call(`{"op":"nack","leases":[%s]%s`, strings.Join(leases, ","), x.nack)
				}
				waiting, err := db.Peek(t.Context(), backends.Peek{Queue: "q", State: backends.StateScheduled, Max: 1000})
				if err != nil || len(leases) != jobs || len(waiting) != jobs {
					t.Fatalf("%d jobs were claimed and %d wait, want %d: %v", len(leases), len(waiting), jobs, err)
				}
				first, last := waiting[0].RunAt, waiting[jobs-1].RunAt
				if least, most := x.spread*3/2, x.spread*2; last.Sub(first) < least || last.Sub(first) > most {
					t.Errorf("the jobs come back within %v, want %v to %v", last.Sub(first), least, most)
				}
			})
		})
	}
}
