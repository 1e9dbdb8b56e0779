package crash

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestMySQLCrashRun also ends connections to the server repeatedly, and crashes the server once. No
// worker gets a deadlock error.
func TestMySQLCrashRun(t *testing.T) {
	kinds := kit.SkipLockedKinds
	if kit.Soak {
		kinds = append([]testserver.Kind{testserver.MariaDB105}, kinds...)
	}
	kit.OnMySQL(t, kinds, func(t *testing.T, s *kit.Site, p *databases.MySQL) {
		crashWithServer(t, s, p, p.Crash, p.Jobs)
		met := p.Contention()
		kit.Figure(t, "%s: %d deadlocks and %d lock waits that timed out, by the server's counters; a worker that gets one ends the run",
			p.Version, met.Deadlocks, met.Timeouts)
	})
}
