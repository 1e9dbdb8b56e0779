package queueset

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestBudgetOfAFleet counts what the sidecars of a fleet send in a minute of a virtual clock, each with ten new jobs in
// a second. Everything that one sends is heard by all.
func TestBudgetOfAFleet(t *testing.T) {
	t.Parallel()
	sent := func(sidecars int) int {
		all, now, n := make([]Budget, sidecars), time.Now(), 0
		for range 60 * 10 * sidecars {
			now = now.Add(time.Second / 10 / time.Duration(sidecars))
			b := &all[rand.N(sidecars)]
			b.SetSidecars(sidecars)
			if !b.Allows(now) {
				continue
			}
			n++
			for i := range all {
				all[i].SetSidecars(sidecars)
				all[i].Spend(now, 1)
			}
		}
		return n
	}
	for _, n := range []int{4, 40, 400} {
		got := sent(n)
		t.Logf("%d sidecars send %d notifications in a minute, which reach them %d times", n, got, n*got)
		if want := 600 * n; n < 20 && got < want {
			t.Errorf("%d sidecars send %d notifications, want all %d", n, got, want)
		}
		if most := 62 * deliveries; n*got > most {
			t.Errorf("%d sidecars get %d notifications, want at most %d", n, n*got, most)
		}
	}
}

func TestEstimate(t *testing.T) {
	t.Parallel()
	for _, n := range []int{100, 10_000} {
		var all []int64
		for range n {
			all = append(all, int64(rand.Uint64()))
		}
		slices.Sort(all)
		if got := Estimate(64, all[63]); got < n/2 || got > 2*n {
			t.Errorf("%d of %d", got, n)
		}
	}
	if n := Estimate(8, math.MaxInt64); n != 8 {
		t.Errorf("the largest number is the 8th, so there are %d", n)
	}
}
