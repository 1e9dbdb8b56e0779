package batches

import (
	"slices"
	"testing"
	"time"
)

// TestWalkIsFair checks that a walk reads each batch in turn, also if its steps are slow and it rests after each.
func TestWalkIsFair(t *testing.T) {
	const n = 2500
	for _, each := range []time.Duration{time.Microsecond, 300 * time.Microsecond, 5 * time.Millisecond} { // of a batch
		now := time.Unix(1, 0)
		var w walk
		read := map[int64]int{}
		seen, steps := 0, 0
		busy := time.Duration(0)
		for ; seen < 3*n; now = now.Add(time.Second) { // maintenance runs each second
			s := w.begin(now)
			if s.most == 0 {
				w.end(s, nil, now)
				continue
			}
			steps++
			var batches []int64
			for id := s.after + 1; id <= n && len(batches) < s.most; id++ {
				batches = append(batches, id)
				read[id]++
			}
			took := each * time.Duration(len(batches))
			w.end(s, batches, now.Add(took))
			seen, busy = seen+len(batches), busy+took
			now = now.Add(took)
		}
		counts := make([]int, 0, n)
		for id := int64(1); id <= n; id++ {
			counts = append(counts, read[id])
		}
		if least, most := slices.Min(counts), slices.Max(counts); most-least > 1 {
			t.Errorf("%v for a batch: one was read %d times, and another one %d times", each, least, most)
		}
		elapsed := now.Sub(time.Unix(1, 0))
		if share := busy.Seconds() / elapsed.Seconds(); share > 1.0/stepPauses {
			t.Errorf("%v for a batch: the walk used %.3f of the time", each, share)
		}
		t.Logf("%v for a batch: all %d are read in %v, %d steps", each, n, (elapsed / 3).Round(time.Second), steps/3)
	}
}

// TestFewBatchesAreReadAtOnce checks that each call reads all batches if they are few, or quick.
func TestFewBatchesAreReadAtOnce(t *testing.T) {
	var w walk
	for range 3 {
		s := w.begin(time.Unix(1, 0))
		if s.after != 0 || s.most < firstStep {
			t.Errorf("the step is %+v", s)
		}
		w.end(s, make([]int64, s.most-1), time.Unix(1, 0))
	}
}
