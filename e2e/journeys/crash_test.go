package journeys

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestCrashes kills workers and the sidecar with signal 9 under load. No job is lost. A job is
// delivered again only if its worker or sidecar was killed.
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
