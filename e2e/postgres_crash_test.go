package e2e

import (
	"strings"
	"testing"
	"time"
)

// TestPostgresCrashRun: beside workers and sidecars, connections to the server
// are ended all the time, and once the whole server crashes.
func TestPostgresCrashRun(t *testing.T) {
	s, p := newPostgresSite(t)
	s.hostLease = 3 * time.Second
	jobs := size(100_000)
	v := crashRun{
		Queue: "crash", Jobs: jobs, Workers: 32,
		Sidecars: []*sidecar{s.started("a"), s.started("b")},
		Killers: []killer{
			{Every: 100, Strike: killWorker},
			{Every: size(10_000), Strike: killSidecar},
			{Every: size(1_000) - 1, Strike: p.endConnection},
			{Every: jobs/2 + 1, Strike: p.killBackend}, // once
		},
		Left: p.jobs,
	}.run(t)
	judgeCrash(t, v)
	if v.Cuts == 0 {
		t.Error("no connection was ended")
	}
	if n := strings.Count(p.Log(), "was terminated by signal 9"); n != 1 {
		t.Errorf("a process of the server was killed %d times, want once", n)
	}
}
