package journeys

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestCrashes: workers and the sidecar are killed by signal 9 while jobs flow. None is
// lost, and none is delivered again unless what had it was killed.
func TestCrashes(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	const jobs = 1000
	kit.JudgeCrash(t, kit.CrashRun{
		Queue: "crash", Jobs: jobs, Workers: 8,
		Sidecars: []*kit.Sidecar{s.Start("a")},
		Killers: []kit.Killer{
			{Every: jobs / 10, Kill: kit.KillWorker},
			{Every: jobs / 4, Kill: kit.KillSidecar},
		},
		Left: s.JobsInFile,
	}.Run(t))
}
