package e2e

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestMySQLCrashRun: beside workers and sidecars, connections to the server are
// ended all the time, and once the whole server crashes. A deadlock is never a
// worker's business.
func TestMySQLCrashRun(t *testing.T) {
	kinds := skipping
	if soak {
		kinds = append([]testserver.Kind{testserver.MariaDB105}, kinds...)
	}
	onMySQL(t, kinds, func(t *testing.T, s *site, p *mysqlServer) {
		s.hostLease = 3 * time.Second
		jobs := size(100_000)
		v := crashRun{
			Queue: "crash", Jobs: jobs, Workers: 32,
			Sidecars: []*sidecar{s.started("a"), s.started("b")},
			Killers: []killer{
				{Every: 100, Strike: killWorker},
				{Every: size(10_000), Strike: killSidecar},
				{Every: size(1_000) - 1, Strike: p.endConnection},
				{Every: jobs/2 + 1, Strike: p.crash}, // once
			},
			Left: p.jobs,
		}.run(t)
		judgeCrash(t, v)
		if v.Cuts == 0 {
			t.Error("no connection was ended")
		}
		met := p.contention()
		figure(t, "%s: %d deadlocks and %d lock waits that timed out, as the server counts them; a worker that is told of one ends the run",
			p.Version, met.deadlocks, met.timeouts)
	})
}
