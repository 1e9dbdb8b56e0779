package heartbeat

import (
	"testing"
	"time"
)

// TestSuspendClock shows that the clock follows a suspension at once, however the wall clock is set, and reads the
// expensive clock rarely while there is none.
func TestSuspendClock(t *testing.T) {
	var now clocks
	var boot time.Duration
	reads := 0
	c := suspendClock{now: func() clocks { return now }, sinceBoot: func() time.Duration { reads++; return boot }}
	run := func(d time.Duration) { now.wall, now.monotonic, boot = now.wall+d, now.monotonic+d, boot+d }
	suspend := func(d time.Duration) { now.wall, boot = now.wall+d, boot+d }
	expect := func(what string) {
		t.Helper()
		if got := c.read(); got != boot {
			t.Errorf("%s: the clock shows %v, want %v", what, got, boot)
		}
	}
	expect("at first")
	for range 1000 {
		run(10 * time.Microsecond)
		expect("a moment later")
	}
	if reads != 2 {
		t.Errorf("%d readings in 10 ms", reads)
	}
	suspend(time.Hour)
	expect("after a suspension")
	now.wall -= time.Hour
	expect("after the wall clock was set back")
	suspend(time.Hour)
	now.wall -= time.Hour // nothing shows the suspension
	run(trustedFor)
	expect("after a hidden suspension and trustedFor")
	run(time.Hour)
	expect("after an hour")
}

// TestBootTimeIsTheKernels compares the clock with the one that it stands for.
func TestBootTimeIsTheKernels(t *testing.T) {
	for range 10_000 {
		before := sinceBoot()
		got := BootTime()
		if after := sinceBoot(); got < before-2*maxDrift || got > after+2*maxDrift {
			t.Fatalf("BootTime is %v, between %v and %v", got, before, after)
		}
	}
}
