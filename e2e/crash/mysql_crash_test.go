package crash

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestMySQLCrashRun also ends connections to the server repeatedly, and crashes the server once. No
// worker gets a deadlock error.
func TestMySQLCrashRun(t *testing.T) {
	kinds := kit.SkipLockedKinds
	if kit.Soak {
		kinds = append([]testserver.Kind{testserver.MariaDB105}, kinds...)
	}
	kit.OnMySQL(t, kinds, func(t *testing.T, s *kit.Site, p *kit.MySQL) {
		jobs := kit.Size(100_000)
		v := kit.CrashRun{
			Queue: "crash", Jobs: jobs, Workers: 32,
			Sidecars: []*kit.Sidecar{s.Start("a"), s.Start("b")},
			Killers: []kit.Killer{
				{Every: 100, Kill: kit.KillWorker},
				{Every: kit.Size(10_000), Kill: kit.KillSidecar},
				{Every: kit.Size(1_000) - 1, Kill: p.EndConnection},
				{Every: jobs/2 + 1, Kill: p.Crash}, // once
			},
			Left: p.Jobs,
		}.Run(t)
		kit.JudgeCrash(t, v)
		if v.Cuts == 0 {
			t.Error("no connection was ended")
		}
		met := p.Contention()
		kit.Figure(t, "%s: %d deadlocks and %d lock waits that timed out, as the server counts them; a worker that is told of one ends the run",
			p.Version, met.Deadlocks, met.Timeouts)
	})
}
