package bridge

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestScheduledJobIsReadyWithinASecond: each occurrence has one job, which a waiting worker gets within a second.
func TestScheduledJobIsReadyWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, options(memory.New())).dial(t)
		c.call(`{"op":"schedule","queue":"q","schedule":{"name":"s","every_ms":2000}}`)
		seen := map[string]bool{}
		for range 20 {
			r := c.call(`{"op":"claim","queue":"q","wait_ms":10000}`)
			if len(r.Jobs) != 1 {
				t.Fatalf("claimed %d jobs", len(r.Jobs))
			}
			text := r.Jobs[0].Headers[backends.OccurrenceHeader]
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				t.Fatal(err)
			}
			if late := time.Since(at); late < 0 || late >= time.Second {
				t.Errorf("the job of %s came %v late", text, late)
			}
			if seen[text] {
				t.Errorf("two jobs of %s", text)
			}
			seen[text] = true
			c.call(`{"op":"ack","lease":%q}`, r.Jobs[0].Lease)
		}
		if r := c.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != 0 {
			t.Error("an occurrence has two jobs")
		}
	})
}

// TestPausedScheduleStoresNoJob: a schedule stores no jobs for the time of its pause, neither then nor afterwards.
func TestPausedScheduleStoresNoJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, options(memory.New())).dial(t)
		c.call(`{"op":"schedule","queue":"q","schedule":{"name":"s","every_ms":1000}}`)
		c.call(`{"op":"change_schedule","queue":"q","schedule":{"name":"s"},"do":"pause"}`)
		c.call(`{"op":"claim","queue":"q","max":10}`)
		if r := c.call(`{"op":"claim","queue":"q","wait_ms":20000}`); len(r.Jobs) != 0 {
			t.Error("a paused schedule stored a job")
		}
		c.call(`{"op":"change_schedule","queue":"q","schedule":{"name":"s"},"do":"resume"}`)
		if r := c.call(`{"op":"claim","queue":"q","wait_ms":20000}`); len(r.Jobs) != 1 {
			t.Error("a resumed schedule stored no job")
		}
	})
}
