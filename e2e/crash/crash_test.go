package crash

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestCrashRun kills workers and the sidecar repeatedly. No job is lost, delivered twice at once,
// or left.
func TestCrashRun(t *testing.T) {
	s := kit.NewSite(t)
	v := kit.CrashRun{
		Queue: "crash", Jobs: kit.Size(100_000), Workers: 32,
		Sidecars: []*kit.Sidecar{s.Start("a")},
		Killers: []kit.Killer{
			{Every: 100, Kill: kit.KillWorker},
			{Every: kit.Size(10_000), Kill: kit.KillSidecar},
		},
		Left: s.JobsInFile,
	}.Run(t)
	kit.JudgeCrash(t, v)
}

// TestCrashRunWithTwoSidecars does the same with two sidecars on one file. One is killed, or
// suspended for longer than its timeout.
func TestCrashRunWithTwoSidecars(t *testing.T) {
	s := kit.NewSite(t)
	asleep := &suspender{s: s}
	v := kit.CrashRun{
		Queue: "crash", Jobs: kit.Size(50_000), Workers: 32,
		Sidecars: []*kit.Sidecar{s.Start("a"), s.Start("b")},
		Killers: []kit.Killer{
			{Every: 100, Kill: kit.KillWorker},
			{Every: kit.Size(10_000), Kill: kit.KillSidecar},
			{Every: kit.Size(30_000) - 1, Kill: asleep.strike},
		},
		OnTick: asleep.tend,
		Left:   s.JobsInFile,
	}.Run(t)
	kit.JudgeCrash(t, v)
}
