package core

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/qsidecar/qsidecar/backends"
)

// TestTallyCountsByPages: for any sizes of queues, each queue is counted once, or must be counted alone because
// it is larger than a page. At most two pages of rows are read for each queue that has so many.
func TestTallyCountsByPages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		states := []backends.State{backends.StateDead, backends.StateDone}
		rows := rapid.SliceOf(rapid.Custom(func(t *rapid.T) Counted {
			return Counted{Queue: rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "queue"), State: rapid.SampledFrom(states).Draw(t, "state"), N: 1}
		})).Draw(t, "rows")
		order := func(x, y Counted) int { return cmp.Or(cmp.Compare(x.Queue, y.Queue), cmp.Compare(x.State, y.State)) }
		slices.SortFunc(rows, order)
		size := rapid.Int64Range(1, 9).Draw(t, "page")
		var tally Tally
		read := int64(0)
		err := tally.count(size, func(after Counted, limit int64) (all []Counted, err error) {
			for _, r := range rows {
				if limit > 0 && order(r, after) > 0 {
					all = append(all, r)
					limit--
					read++
				}
			}
			return all, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		count := map[Counted]int64{}
		want, most := map[string]backends.QueueStats{}, int64(0)
		for _, r := range rows {
			count[r]++
			q := want[r.Queue]
			q.Queue = r.Queue
			*Counts(&q)[r.State]++
			want[r.Queue] = q
		}
		for _, n := range count {
			most += 2 * min(n, size)
		}
		if read > most {
			t.Errorf("%d rows were read, want %d at most", read, most)
		}
		all, alone := tally.All()
		if len(all) != len(want) {
			t.Errorf("%d queues, want %d", len(all), len(want))
		}
		for _, q := range all {
			large := count[Counted{q.Queue, states[0], 1, 0}] >= size || count[Counted{q.Queue, states[1], 1, 0}] >= size
			if alone(q.Queue) && !large || !alone(q.Queue) && q != want[q.Queue] {
				t.Errorf("%+v (alone: %v), want %+v", q, alone(q.Queue), want[q.Queue])
			}
		}
	})
}
