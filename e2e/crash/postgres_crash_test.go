package crash

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestPostgresCrashRun also ends connections to the server repeatedly, and crashes the server once.
func TestPostgresCrashRun(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	jobs := kit.Size(100_000)
	v := kit.CrashRun{
		Queue: "crash", Jobs: jobs, Workers: 32,
		Sidecars: []*kit.Sidecar{s.Start("a"), s.Start("b")},
		Killers: []kit.Killer{
			{Every: 100, Kill: kit.KillWorker},
			{Every: kit.Size(10_000), Kill: kit.KillSidecar},
			{Every: kit.Size(1_000) - 1, Kill: p.EndConnection},
			{Every: jobs/2 + 1, Kill: p.KillBackend}, // once
		},
		Left: p.Jobs,
	}.Run(t)
	kit.JudgeCrash(t, v)
	if v.Cuts == 0 {
		t.Error("no connection was ended")
	}
	if n := strings.Count(p.Log(), "was terminated by signal 9"); n != 1 {
		t.Errorf("a process of the server was killed %d times, want once", n)
	}
}
