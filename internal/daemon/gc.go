package daemon

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// gcHeadroom is how much is allocated between two garbage collections at least.
// By itself Go collects whenever the heap has doubled, and a sidecar's is a few
// MiB: under load that is a tenth of its CPU (bench/README.md). Where the heap
// is larger than this, Go's own rule holds.
const gcHeadroom = 16 << 20

// KeepHeadroom sets the collector's goal after each collection, for the rest of
// the process. GOGC in the environment is left alone.
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

// gcPercent is the goal for a live heap of so many bytes, in steps, because each
// change stops the process for a moment.
func gcPercent(live uint64) int {
	const step, most = 50, 800
	percent := gcHeadroom * 100 / max(live, 1)
	return int(min(max(percent/step*step, 100), most))
}
