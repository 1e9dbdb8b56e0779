package clients

import (
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestWorkersLogTheFirstSignal checks that a worker with a long job reports that it stops, and how many jobs run.
func TestWorkersLogTheFirstSignal(t *testing.T) {
	t.Parallel()
	const text = "stopping; running jobs: 1; a second signal ends the worker at once"
	for name, c := range map[string]struct {
		start func(*testing.T, *kit.Sidecar) *clientlib.Worker
		want  string
	}{
		"Go":           {clientlib.Workers["Go"], "worker stopping running_jobs=1"},
		"Node":         {clientlib.Workers["Node"], text},
		"Python":       {clientlib.Workers["Python"], text},
		"Python async": {clientlib.Workers["Python async"], text},
		"Python processes": {func(t *testing.T, sc *kit.Sidecar) *clientlib.Worker {
			return clientlib.PythonWorker(t, sc, nil, "--processes", "-j", "2")
		}, text},
		"Ruby": {clientlib.Workers["Ruby"], text},
		"Ruby processes": {func(t *testing.T, sc *kit.Sidecar) *clientlib.Worker {
			return clientlib.RubyWorker(t, sc, nil, "-c", "1", "-p", "2")
		}, text},
		"work": {func(t *testing.T, sc *kit.Sidecar) *clientlib.Worker {
			return clientlib.NewWorker(t, sc, nil, kit.Binary, "work", "long", "--", "sh", "-c", `echo "0 $QSIDECAR_ATTEMPT" >>"$WORKER_LOG"; : <"$WORKER_GATE"`)
		}, text},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc := kit.NewSite(t).Start("a")
			w := c.start(t, sc)
			sc.Dial().Enqueue("long", 1)
			w.Start()
			w.DoneAtLeast(1)
			if err := w.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			testwait.Until(t, "the worker reports that it stops", func() bool { return strings.Contains(w.Output.String(), c.want) })
			w.OpenGate()
			w.WaitExit()
			if got := w.Counts("long"); got.Total() != 0 {
				t.Errorf("the worker left %+v", got)
			}
		})
	}
}
