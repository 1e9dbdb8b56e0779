package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// clientWorker runs a worker of a client library as a process: a program that works
// the queues quick and long, and appends the payload and the attempt of each job that it does
// to the file in WORKER_LOG, a line each. A long job takes WORKER_SECONDS after its line.
type clientWorker struct {
	t       *testing.T
	sidecar *sidecar
	argv    []string
	env     []string
	log     string

	cmd    *exec.Cmd
	said   *bytes.Buffer
	exited chan struct{}
}

// workersTime bounds the waits for all the jobs of a test.
const workersTime = 5 * patience

func newClientWorker(t *testing.T, sc *sidecar, env []string, argv ...string) *clientWorker {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	env = append(env, "QSIDECAR_SOCKET="+sc.socket, "WORKER_LOG="+log)
	return &clientWorker{t: t, sidecar: sc, argv: argv, env: env, log: log}
}

// start starts the process; more are further arguments.
func (w *clientWorker) start(more ...string) {
	w.t.Helper()
	cmd := exec.Command(w.argv[0], append(w.argv[1:], more...)...)
	cmd.Env = append(os.Environ(), w.env...)
	w.said = new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = w.said, w.said
	cmd.WaitDelay = patience // children of its own may hold its output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	exited := make(chan struct{})
	w.cmd, w.exited = cmd, exited
	go func() {
		_ = cmd.Wait() // its state says how it ended
		close(exited)
	}()
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails where it is gone already
		<-exited
	})
}

// ends waits for the process to end by itself, with 0.
func (w *clientWorker) ends() {
	w.t.Helper()
	select {
	case <-w.exited:
	case <-time.After(patience):
		w.t.Fatalf("%v did not end within %v", w.argv, patience)
	}
	if code := w.cmd.ProcessState.ExitCode(); code != 0 {
		w.t.Fatalf("%v ended with %v, want the exit code 0; it said:\n%s", w.argv, w.cmd.ProcessState, w.said)
	}
}

// done counts the lines of the worker's log by payload, and all of them.
func (w *clientWorker) done() (byPayload map[string]int, lines []string) {
	w.t.Helper()
	text, err := os.ReadFile(w.log)
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	byPayload = map[string]int{}
	for line := range strings.Lines(string(text)) {
		lines = append(lines, strings.TrimSpace(line))
		payload, _, _ := strings.Cut(line, " ")
		byPayload[payload]++
	}
	return byPayload, lines
}

// doneAtLeast waits until so many jobs were done.
func (w *clientWorker) doneAtLeast(n int) {
	w.t.Helper()
	eventually(w.t, workersTime, fmt.Sprintf("%d jobs are done", n), func() bool {
		select {
		case <-w.exited:
			w.t.Fatalf("%v ended: %v; it said:\n%s", w.argv, w.cmd.ProcessState, w.said)
		default:
		}
		_, lines := w.done()
		return len(lines) >= n
	})
}

// counts are the jobs of a queue.
func (w *clientWorker) counts(queue string) wireStat {
	w.t.Helper()
	c := w.sidecar.dial()
	defer c.Close() // it is asked often
	for _, q := range c.must(msg{"op": "stats", "queue": queue}).Queues {
		return q
	}
	return wireStat{}
}

// gone waits until the queue has no job in any state.
func (w *clientWorker) gone(queue string) {
	w.t.Helper()
	eventually(w.t, workersTime, "no job is left", func() bool { return w.counts(queue).total() == 0 })
}

// killedInTheMiddle: signal 9 in the middle of n jobs, a restart, and all are done;
// none twice but those that the killed worker had in its hands, concurrency at most.
func (w *clientWorker) killedInTheMiddle(n, concurrency int) {
	w.t.Helper()
	w.sidecar.dial().enqueueN("quick", n)
	w.start()
	w.doneAtLeast(n / 2)
	if err := w.cmd.Process.Kill(); err != nil {
		w.t.Fatalf("%v; it said:\n%s", err, w.said)
	}
	<-w.exited
	if left := w.counts("quick").total(); left == 0 {
		w.t.Fatal("nothing was left to do when the worker was killed: the test saw nothing")
	}
	w.start()
	w.gone("quick")
	w.terminate()
	byPayload, lines := w.done()
	if len(byPayload) != n {
		w.t.Errorf("%d jobs of %d were done", len(byPayload), n)
	}
	if twice := len(lines) - len(byPayload); twice > concurrency {
		w.t.Errorf("%d jobs were done twice after one kill of a worker of %d at once", twice, concurrency)
	}
}

// terminate sends SIGTERM and waits for the exit.
func (w *clientWorker) terminate() {
	w.t.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Fatalf("%v; it said:\n%s", err, w.said)
	}
	w.ends()
}

// terminatedInTheMiddle: SIGTERM in the middle of n jobs loses and charges nothing.
func (w *clientWorker) terminatedInTheMiddle(n int) {
	w.t.Helper()
	w.sidecar.dial().enqueueN("quick", n)
	w.start()
	w.doneAtLeast(n / 2)
	w.terminate()
	byPayload, lines := w.done()
	var left wireStat
	eventually(w.t, patience, "what the sidecar claimed ahead is back", func() bool {
		left = w.counts("quick")
		return left.Claimed == 0
	})
	if left.Ready == 0 {
		w.t.Fatal("nothing was left to do when the worker was stopped: the test saw nothing")
	}
	if len(lines) != len(byPayload) || len(byPayload)+left.Ready != n || left.total() != left.Ready {
		w.t.Errorf("of %d jobs %d were done, some twice (%d times in all), and are left: %+v", n, len(byPayload), len(lines), left)
	}
	for _, j := range w.sidecar.dial().must(msg{"op": "peek", "queue": "quick", "max": 1000}).Jobs {
		if j.Attempt != 0 || len(j.Errors) > 0 {
			w.t.Errorf("a job that was not done shows %+v, want no attempt charged", j)
		}
	}
	w.start()
	w.gone("quick")
	w.terminate()
	if _, lines = w.done(); len(lines) != n {
		w.t.Errorf("%d jobs were done, want each of %d once", len(lines), n)
	}
}

// stoppedAsAGroup: every process of a worker of that concurrency is sent SIGTERM, as a
// terminal or a service manager does; the jobs under way are finished all the same.
func (w *clientWorker) stoppedAsAGroup(concurrency int) {
	w.t.Helper()
	w.sidecar.dial().enqueueN("long", concurrency)
	w.start()
	w.doneAtLeast(concurrency)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", w.cmd.Process.Pid))
	children := strings.Fields(string(text))
	if err != nil || len(children) == 0 {
		w.t.Fatalf("the worker's children are %q (%v), want some", children, err)
	}
	for _, pid := range children {
		n, err := strconv.Atoi(pid)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := syscall.Kill(n, syscall.SIGTERM); err != nil {
			w.t.Fatal(err)
		}
	}
	w.terminate()
	if left := w.counts("long"); left.total() != 0 {
		w.t.Errorf("%+v is left of the jobs that were under way; the worker said:\n%s", left, w.said)
	}
	if _, lines := w.done(); len(lines) != concurrency {
		w.t.Errorf("the %d jobs were delivered as %q", concurrency, lines)
	}
}

// outlivesRestart: the sidecar is stopped and started anew under a job that takes
// three lease periods and makes no call; the job is delivered once, and acked.
func (w *clientWorker) outlivesRestart(stop func(*sidecar)) {
	w.t.Helper()
	w.sidecar.dial().enqueueN("long", 1)
	w.start()
	w.doneAtLeast(1)
	stop(w.sidecar)
	w.sidecar.start()
	w.gone("long")
	w.terminate()
	if _, lines := w.done(); len(lines) != 1 || lines[0] != "0 1" {
		w.t.Errorf("the job was delivered as %q, want once, as attempt 1; the worker said:\n%s", lines, w.said)
	}
}

// outlivesKills: the sidecar is killed and started anew, again and again, under n short
// jobs. Each is done once: the worker comes back with what it holds, and settles it again
// where an answer was lost. What a lost claim took comes back when its lease has ended.
func (w *clientWorker) outlivesKills(n int) {
	w.t.Helper()
	w.sidecar.dial().enqueueN("quick", n)
	w.start()
	const kills = 5
	for i := range kills {
		w.doneAtLeast(n * (i + 1) / (kills + 2))
		w.sidecar.kill()
		w.sidecar.start()
	}
	if left := w.counts("quick").total(); left == 0 {
		w.t.Fatal("nothing was left to do after the last kill: the test saw nothing")
	}
	w.gone("quick")
	w.terminate()
	if byPayload, lines := w.done(); len(byPayload) != n || len(lines) != n {
		w.t.Errorf("%d jobs of %d were done, %d times in all, want each once; the worker said:\n%s", len(byPayload), n, len(lines), w.said)
	}
}

// restartSite is a site whose lease period is short, and the WORKER_SECONDS of three.
func restartSite(t *testing.T) (*site, string) {
	t.Helper()
	s := newSite(t)
	s.hostLease = 2 * time.Second
	s.extra = "drain_timeout: 300ms\n"
	return s, fmt.Sprintf("WORKER_SECONDS=%g", (3*s.hostLease + 200*time.Millisecond).Seconds())
}
