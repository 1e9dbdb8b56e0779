package crash

import (
	"errors"
	"os"
	"syscall"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// suspender stops sidecars of a crash run until another one has given up their leases.
// The run goes on meanwhile.
type suspender struct {
	s      *kit.Site
	asleep []suspended
}

// suspended is a sidecar that stands still.
type suspended struct {
	name     string
	process  *os.Process // another killer may put a new one in its place
	identity int64
	at       int64
}

// strike stops a random sidecar, if none is stopped: one has to give up its leases.
func (x *suspender) strike(r *kit.CrashRuntime) {
	if len(x.asleep) > 0 {
		return
	}
	sc := r.Sidecars[r.Rand.IntN(len(r.Sidecars))]
	identity := sc.Identity()
	x.asleep = append(x.asleep, suspended{sc.Name, sc.Cmd.Process, identity, suspend(x.s, sc)})
}

// tend lets a sidecar go on once no job is its own any more.
func (x *suspender) tend(r *kit.CrashRuntime) {
	if len(x.asleep) == 0 {
		return
	}
	a := x.asleep[0]
	if len(x.s.Rows("SELECT id FROM qsidecar_jobs WHERE owner = ?", a.identity)) > 0 {
		return
	}
	x.asleep = nil
	if err := a.process.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.T.Error(err)
	}
	if err := r.Hist.Add(kit.Record{At: a.at, Until: kit.Monotonic(), Who: a.name, What: kit.Killed}); err != nil {
		r.T.Error(err)
	}
}

// suspend stops a sidecar, outside of a write: inside one it holds SQLite's lock
// of the file, and everybody waits for it, however long it sleeps.
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
