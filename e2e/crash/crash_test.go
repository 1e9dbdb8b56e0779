package crash

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/crash"
)

// TestCrashRun kills workers and the sidecar repeatedly. No job is lost, delivered twice at once,
// or left.
func TestCrashRun(t *testing.T) {
	s := kit.NewSite(t)
	v := crash.Plan{
		Queue: "crash", Jobs: kit.Size(50_000), Workers: 32,
		Sidecars: []*kit.Sidecar{s.Start("a")},
		Killers: []crash.Killer{
			{Every: 100, Kill: crash.KillWorker},
			{Every: kit.Size(10_000), Kill: crash.KillSidecar},
		},
		Left: s.JobsInFile,
	}.Run(t)
	crash.Judge(t, v)
}

// TestCrashRunWithTwoSidecars does the same with two sidecars on one file. One is killed, or
// suspended for longer than its timeout.
func TestCrashRunWithTwoSidecars(t *testing.T) {
	s := kit.NewSite(t)
	asleep := &suspender{s: s}
	v := crash.Plan{
		Queue: "crash", Jobs: kit.Size(50_000), Workers: 32,
		Sidecars: []*kit.Sidecar{s.Start("a"), s.Start("b")},
		Killers: []crash.Killer{
			{Every: 100, Kill: crash.KillWorker},
			{Every: kit.Size(10_000), Kill: crash.KillSidecar},
			{Every: kit.Size(30_000) - 1, Kill: asleep.strike},
		},
		OnTick: asleep.tend,
		Left:   s.JobsInFile,
	}.Run(t)
	crash.Judge(t, v)
}
