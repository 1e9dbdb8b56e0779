package daemon

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

func TestHeadroom(t *testing.T) {
	for live, want := range map[uint64]int{0: 800, 1 << 20: 800, 4 << 20: 400, 15 << 20: 100, 1 << 30: 100} {
		if got := gcPercent(live); got != want {
			t.Errorf("with %d bytes alive the goal is %d %%, want %d", live, got, want)
		}
	}
}

var garbage []byte

// TestTrimWhenIdle checks that a process that was busy collects its garbage once when it is idle, and not while it is busy.
func TestTrimWhenIdle(t *testing.T) {
	t.Setenv("GOGC", "")
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go TrimWhenIdle(ctx)
		forced := func() uint64 {
			synctest.Wait()
			n := []metrics.Sample{{Name: "/gc/cycles/forced:gc-cycles"}}
			metrics.Read(n)
			return n[0].Value.Uint64()
		}
		start := forced()
		for range 100 { // seconds
			garbage = make([]byte, 1<<20)
			time.Sleep(time.Second)
		}
		if n := forced() - start; n > 0 {
			t.Errorf("%d collections while it is busy", n)
		}
		time.Sleep(10 * trimEvery)
		if n := forced() - start; n != 1 {
			t.Errorf("%d collections while it is idle, want one", n)
		}
	})
}

// TestHeadroomFollowsTheHeap checks the goal for a small heap, then for a large one.
func TestHeadroomFollowsTheHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Cleanup(func() { debug.SetGCPercent(100) })
	SetGCHeadroom()
	goal := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	reaches := func(what string, fits func(percent uint64) bool) {
		t.Helper()
		testwait.Until(t, "the goal "+what, func() bool {
			runtime.GC()
			metrics.Read(goal)
			return fits(goal[0].Value.Uint64())
		})
	}
	reaches("with little alive", func(p uint64) bool { return p > 100 })
	held := make([]byte, 64<<20)
	reaches("with 64 MiB alive", func(p uint64) bool { return p == 100 })
	runtime.KeepAlive(held)
}
