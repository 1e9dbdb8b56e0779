package daemon

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
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

// gcPercent returns the goal for a live heap of that size. It is rounded to steps, because
// each change stops the process briefly.
func gcPercent(live uint64) int {
	const step, most = 50, 800
	percent := gcHeadroom * 100 / max(live, 1)
	return int(min(max(percent/step*step, 100), most))
}
