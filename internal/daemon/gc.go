package daemon

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// gcHeadroom is the least allocation between two garbage collections. By default Go collects
// when the heap has doubled. A sidecar's heap is a few MiB, so collections would take a
// tenth of its CPU under load (bench/README.md). A larger heap follows Go's default.
const gcHeadroom = 16 << 20

// SetGCHeadroom adjusts the collector's goal after each collection, for the rest of the
// process. It does nothing if the environment sets GOGC.
func SetGCHeadroom() {
	if os.Getenv("GOGC") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	set := 100
	var collected func(struct{})
	collected = func(struct{}) {
		metrics.Read(live)
		if percent := gcPercent(live[0].Value.Uint64()); percent != set {
			debug.SetGCPercent(percent)
			set = percent
		}
		runtime.AddCleanup(new([64]byte), collected, struct{}{}) // runs after the next collection
	}
	collected(struct{}{})
}

const (
	trimEvery = 10 * time.Second
	idleBytes = 2 << 20 // an idle process allocates less in trimEvery; 20 jobs a second take about as much
	trimBytes = 1 << 20 // garbage that is worth a collection of a small heap, which takes some milliseconds of CPU time
	trimShare = 8       // a large heap: an eighth of it
)

// TrimWhenIdle collects garbage and returns its memory to the system when the process is idle, until ctx ends. Otherwise an
// idle sidecar would keep gcHeadroom, and the stacks of its last load, for minutes. It does nothing if the environment sets GOGC.
func TrimWhenIdle(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	heap := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	var last, trimmed uint64
	for tick := time.Tick(trimEvery); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		metrics.Read(heap)
		now := heap[0].Value.Uint64()
		if now-last < idleBytes && now-trimmed > max(trimBytes, heap[1].Value.Uint64()/trimShare) {
			debug.FreeOSMemory()
			trimmed = now
		}
		last = now
	}
}

// gcPercent returns the goal for a live heap of that size. It is rounded to steps, because
// each change stops the process briefly.
func gcPercent(live uint64) int {
	const step, most = 50, 800
	percent := gcHeadroom * 100 / max(live, 1)
	return int(min(max(percent/step*step, 100), most))
}
