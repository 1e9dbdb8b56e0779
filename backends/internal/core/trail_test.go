package core

import (
	"testing"
	"time"
)

// TestTrail: bites go on where the last one ended, and now and then one begins at the
// beginning; the slower that is, the seldomer.
func TestTrail(t *testing.T) {
	var x Trail
	now := time.Unix(1_000_000, 0)
	look := func(after, took time.Duration, want time.Time) {
		t.Helper()
		now = now.Add(after)
		if got := x.From(now); !got.Equal(want) {
			t.Fatalf("from %v, want %v", got, want)
		}
		x.Looked(x.From(now), now, took)
	}
	first, second := now.Add(-time.Hour), now.Add(-time.Minute)
	look(0, time.Millisecond, time.Time{})
	look(time.Second, time.Millisecond, time.Time{}) // nothing was found: there is no better place
	x.Found(first)
	look(time.Second, time.Millisecond, first)
	x.Found(second)
	look(time.Second, time.Millisecond, second)
	look(wholeEvery, 3*time.Second, time.Time{})
	look(wholeEvery, time.Millisecond, second) // the last one was too slow for another so soon
	look(wholeShare*3*time.Second, time.Millisecond, time.Time{})
}
