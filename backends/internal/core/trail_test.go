package core

import (
	"testing"
	"time"
)

// TestTrail: a batch starts where the last one ended. From time to time one starts at the beginning, less often
// if that is slow.
func TestTrail(t *testing.T) {
	var x Trail
	now := time.Unix(1_000_000, 0)
	look := func(after, took time.Duration, want time.Time) {
		t.Helper()
		now = now.Add(after)
		if got := x.From(now); !got.Equal(want) {
			t.Fatalf("from %v, want %v", got, want)
		}
		x.Scanned(x.From(now), now, took)
	}
	first, second := now.Add(-time.Hour), now.Add(-time.Minute)
	look(0, time.Millisecond, time.Time{})
	look(time.Second, time.Millisecond, time.Time{}) // nothing was found, so there is no better start
	x.Found(first)
	look(time.Second, time.Millisecond, first)
	x.Found(second)
	look(time.Second, time.Millisecond, second)
	look(wholeEvery, 3*time.Second, time.Time{})
	look(wholeEvery, time.Millisecond, second) // the last whole scan was too slow for another one so soon
	look(wholeShare*3*time.Second, time.Millisecond, time.Time{})
}
