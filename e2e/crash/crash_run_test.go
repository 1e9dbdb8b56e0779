package crash

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/crash"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// suspender stops sidecars of a crash run until another one has evicted them. The run continues in
// the meantime.
type suspender struct {
	s      *kit.Site
	asleep []suspended
}

// suspended is a stopped sidecar.
type suspended struct {
	name     string
	process  *os.Process // another killer can replace it by a new one
	identity int64
	at       int64
}

// strike stops a random sidecar if none is stopped, because another one must evict it.
func (s *suspender) strike(r *crash.Run) {
	if len(s.asleep) > 0 {
		return
	}
	sc := r.Sidecars[r.Rand.IntN(len(r.Sidecars))]
	identity := sc.Identity()
	s.asleep = append(s.asleep, suspended{sc.Name, sc.Cmd.Process, identity, suspend(s.s, sc)})
}

// tend continues a sidecar once it owns no job any more.
func (s *suspender) tend(r *crash.Run) {
	if len(s.asleep) == 0 {
		return
	}
	a := s.asleep[0]
	if len(s.s.Rows("SELECT id FROM qsidecar_jobs WHERE owner = ?", a.identity)) > 0 {
		return
	}
	s.asleep = nil
	if err := a.process.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.T.Error(err)
	}
	if err := r.Hist.Add(crash.Record{At: a.at, Until: kit.Monotonic(), Who: a.name, What: crash.Killed}); err != nil {
		r.T.Error(err)
	}
}

// suspend stops a sidecar outside of a write. Inside a write it would hold SQLite's lock of the
// file, and all others would wait.
func suspend(s *kit.Site, sc *kit.Sidecar) (at int64) {
	s.T.Helper()
	db := s.SQLite(s.T)
	db.SetMaxOpenConns(1)
	testwait.Until(s.T, sc.Name+" is stopped outside of a write", func() bool {
		at = kit.Monotonic()
		sc.Signal(syscall.SIGSTOP)
		testwait.Until(s.T, "every thread is stopped", sc.Stopped)
		if _, err := db.ExecContext(s.T.Context(), "PRAGMA busy_timeout=300; BEGIN IMMEDIATE; ROLLBACK"); err != nil {
			sc.Signal(syscall.SIGCONT)
			return false
		}
		return true
	})
	return at
}

// crashWithServer runs workers and two sidecars while killers also end connections to the server,
// and crash it once.
func crashWithServer(t *testing.T, s *kit.Site, server crash.Server, crashServer func(), left func(testing.TB) []string) {
	t.Helper()
	jobs := kit.Size(50_000)
	v := crash.Plan{
		Queue: "crash", Jobs: jobs, Workers: 32,
		Sidecars: []*kit.Sidecar{s.Start("a"), s.Start("b")},
		Killers: []crash.Killer{
			{Every: 100, Kill: crash.KillWorker},
			{Every: kit.Size(10_000), Kill: crash.KillSidecar},
			{Every: kit.Size(1_000) - 1, Kill: crash.EndConnection(server)},
			{Every: jobs/2 + 1, Kill: crash.KillServer(crashServer)}, // once
		},
		Left: left,
	}.Run(t)
	crash.Judge(t, v)
	if v.Cuts == 0 {
		t.Error("no connection was ended")
	}
}
