package journeys

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
)

// TestWorkers runs a worker in each language on PostgreSQL. The job of a killed worker goes to the
// next one. SIGTERM ends a worker with exit code 0.
func TestWorkers(t *testing.T) {
	t.Parallel()
	s, p := kit.NewPostgresSite(t)
	a := s.Start("a")
	for name, start := range map[string]func(t *testing.T) *clientlib.Worker{
		"go":           func(t *testing.T) *clientlib.Worker { return clientlib.GoWorker(t, a) },
		"node":         func(t *testing.T) *clientlib.Worker { return clientlib.NodeWorker(t, a, nil) },
		"python async": func(t *testing.T) *clientlib.Worker { return clientlib.AsyncPythonWorker(t, a) },
		"python":       func(t *testing.T) *clientlib.Worker { return clientlib.PythonWorker(t, a, nil) },
		"ruby":         func(t *testing.T) *clientlib.Worker { return clientlib.RubyWorker(t, a, nil, "-c", "8") },
	} {
		t.Run(name, func(t *testing.T) { // in sequence, because they use the same queues
			start(t).KilledInTheMiddle(100, 32) // jobs of a connection can be begun and not settled
		})
	}
	if left := p.Jobs(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// TestShellWorker runs a shell script as a worker with the work command.
func TestShellWorker(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	c := a.Dial()
	c.Put("mail", "one", "two", "three")
	s.Script("send.sh", "cat >>done; echo >>done")
	a.Work("mail", "--drain", "--", "./send.sh").WaitExit(0)
	if got := s.Read("done"); got != "one\ntwo\nthree\n" {
		t.Errorf("the script worked %q", got)
	}
	if got := c.Stats("mail"); got.Total() != 0 {
		t.Errorf("left: %+v", got)
	}
}
