package e2e

import (
	"testing"
	"time"
)

// TestCrashRun: workers and the sidecar die all the time, and nothing is lost,
// done twice at once, or left.
func TestCrashRun(t *testing.T) {
	s := newSite(t)
	s.hostLease = 3 * time.Second
	v := crashRun{
		Queue: "crash", Jobs: size(100_000), Workers: 32,
		Sidecars: []*sidecar{s.started("a")},
		Killers: []killer{
			{Every: 100, Strike: killWorker},
			{Every: size(10_000), Strike: killSidecar},
		},
		Left: s.jobsInFile,
	}.run(t)
	judgeCrash(t, v)
}

// TestCrashRunWithTwoSidecars: the same with two sidecars on one file, one of
// which is killed or suspended beyond its lease.
func TestCrashRunWithTwoSidecars(t *testing.T) {
	s := newSite(t)
	s.hostLease = 2 * time.Second
	v := crashRun{
		Queue: "crash", Jobs: size(50_000), Workers: 32,
		Sidecars: []*sidecar{s.started("a"), s.started("b")},
		Killers: []killer{
			{Every: 100, Strike: killWorker},
			{Every: size(10_000), Strike: killSidecar},
			{Every: size(20_000) - 1, Strike: suspendSidecar(2 * s.hostLease)},
		},
		Left: s.jobsInFile,
	}.run(t)
	judgeCrash(t, v)
}

// judgeCrash fails the test for any problem, and where the run proved nothing.
func judgeCrash(t *testing.T, v verdict) {
	t.Helper()
	if len(v.Problems) > 0 {
		t.Errorf("%d problems:\n%s", len(v.Problems), v.summary(20))
	}
	if v.Redelivered+v.Bound == 0 || v.InDoubt == 0 {
		t.Errorf("the kills hit nobody: %v", v)
	}
}
