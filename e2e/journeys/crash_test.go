package journeys

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/crash"
)

// TestCrashes kills workers and the sidecar with signal 9 under load. No job is lost. A job is
// delivered again only if its worker or sidecar was killed.
func TestCrashes(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	const jobs = 1000
	crash.Judge(t, crash.Plan{
		Queue: "crash", Jobs: jobs, Workers: 8,
		Sidecars: []*kit.Sidecar{s.Start("a")},
		Killers: []crash.Killer{
			{Every: jobs / 10, Kill: crash.KillWorker},
			{Every: jobs / 4, Kill: crash.KillSidecar},
		},
		Left: s.JobsInFile,
	}.Run(t))
}
