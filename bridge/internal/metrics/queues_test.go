package metrics

import (
	"fmt"
	"runtime"
	"testing"
)

// nameQueues creates the counters of n queues that a config names.
func nameQueues(n int) *Database {
	d := New().Databases.Of("main")
	named := func(string) (bool, int) { return true, 0 }
	d.Named.Store(&named)
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint("queue-", i))
	}
	d.AddQueues(names...)
	return d
}

// TestNamedQueuesCostTheSameEach shows that the counters of a queue cost the same memory traffic, however many other
// queues the config names.
func TestNamedQueuesCostTheSameEach(t *testing.T) {
	each := func(n int) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if d := nameQueues(n); len(*d.queues.Load()) != n {
			t.Errorf("%d queues have counters, want %d", len(*d.queues.Load()), n)
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / uint64(n)
	}
	few, many := each(100), each(3000)
	t.Logf("a queue allocates %d bytes beside 100, %d beside 3,000", few, many)
	if many > few*3/2 {
		t.Errorf("a queue allocates %d bytes beside 100 others, and %d beside 3,000", few, many)
	}
}

// BenchmarkNamedQueues measures the start with many queues in the config.
func BenchmarkNamedQueues(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				nameQueues(n)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/queue")
		})
	}
}
