// Package clientlib has the client libraries under test: their packages, as users install them, and workers that use them.
package clientlib

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Worker runs a worker of a client library as a process. The worker processes the queues
// quick and long. For each job it appends the payload and the attempt as a line to the file in
// WORKER_LOG. After its line, a job of the queue long opens the FIFO in WORKER_GATE for reading,
// which returns once OpenGate was called.
type Worker struct {
	T       *testing.T
	Sidecar *kit.Sidecar
	Argv    []string
	Env     []string
	Dir     string // the working folder; empty: that of the test
	log     string
	gate    string

	Cmd    *exec.Cmd
	Output OutputFile
	exited chan struct{}
}

// OutputFile is a file with the output of a process. Unlike a pipe it lets Wait return while children have it open.
type OutputFile string

// WorkerJobs is how many jobs each of Workers runs at once.
const WorkerJobs = 8

// Workers are the workers with acks behind, by their names.
var Workers = map[string]func(*testing.T, *kit.Sidecar) *Worker{
	"Go":           func(t *testing.T, sc *kit.Sidecar) *Worker { return GoWorker(t, sc) },
	"Node":         func(t *testing.T, sc *kit.Sidecar) *Worker { return NodeWorker(t, sc, nil) },
	"Python":       func(t *testing.T, sc *kit.Sidecar) *Worker { return PythonWorker(t, sc, nil) },
	"Python async": AsyncPythonWorker,
	"Ruby": func(t *testing.T, sc *kit.Sidecar) *Worker {
		return RubyWorker(t, sc, nil, "-c", strconv.Itoa(WorkerJobs))
	},
	"work": WorkCommand,
}

// WorkCommand runs `qsidecar work` on the queue quick, with a shell command for each job.
func WorkCommand(t *testing.T, sc *kit.Sidecar) *Worker {
	t.Helper()
	return NewWorker(t, sc, nil, kit.Binary, "work", "quick", "-j", strconv.Itoa(WorkerJobs), "--payload-arg", "--",
		"sh", "-c", `echo "$1 $QSIDECAR_ATTEMPT" >>"$WORKER_LOG"`, "sh")
}

func (o OutputFile) String() string {
	text, err := os.ReadFile(string(o))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// NewWorker describes a worker of the sidecar. argv is its program.
func NewWorker(t *testing.T, sc *kit.Sidecar, env []string, argv ...string) *Worker {
	t.Helper()
	dir := t.TempDir()
	w := &Worker{T: t, Sidecar: sc, Argv: argv, log: filepath.Join(dir, "log"), gate: filepath.Join(dir, "gate")}
	w.Env = append(slices.Clone(env), "QSIDECAR_SOCKET="+sc.Socket, "WORKER_LOG="+w.log, "WORKER_GATE="+w.gate)
	if err := syscall.Mkfifo(w.gate, 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// OpenGate lets the current and later long jobs continue.
func (w *Worker) OpenGate() {
	w.T.Helper()
	gate, err := os.OpenFile(w.gate, os.O_RDWR, 0)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { gate.Close() })
}

// Start starts the process with further arguments.
func (w *Worker) Start(more ...string) {
	w.T.Helper()
	cmd := exec.Command(w.Argv[0], append(w.Argv[1:], more...)...)
	cmd.Env, cmd.Dir = append(os.Environ(), w.Env...), w.Dir
	w.Output = OutputFile(w.log + ".output")
	output, err := os.Create(string(w.Output))
	if err != nil {
		w.T.Fatal(err)
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		w.T.Fatal(err)
	}
	exited := make(chan struct{})
	w.Cmd, w.exited = cmd, exited
	go func() {
		_ = cmd.Wait() // the process state has the result
		close(exited)
	}()
	w.T.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if it has ended
		<-exited
	})
}

// Exited reports whether the process has ended. It is true before Start.
func (w *Worker) Exited() bool {
	if w.exited == nil {
		return true
	}
	select {
	case <-w.exited:
		return true
	default:
		return false
	}
}

// WaitExit waits for the process to exit with 0.
func (w *Worker) WaitExit() {
	w.T.Helper()
	testwait.Closed(w.T, fmt.Sprintf("%v ends", w.Argv), w.exited)
	if code := w.Cmd.ProcessState.ExitCode(); code != 0 {
		w.T.Fatalf("%v ended with %v, want the exit code 0; output:\n%s", w.Argv, w.Cmd.ProcessState, w.Output)
	}
}

// Done counts the lines of the worker's log by payload, and returns all lines.
func (w *Worker) Done() (byPayload map[string]int, lines []string) {
	w.T.Helper()
	text, err := os.ReadFile(w.log)
	if err != nil && !os.IsNotExist(err) {
		w.T.Fatal(err)
	}
	byPayload = map[string]int{}
	for line := range strings.Lines(string(text)) {
		lines = append(lines, strings.TrimSpace(line))
		payload, _, _ := strings.Cut(line, " ")
		byPayload[payload]++
	}
	return byPayload, lines
}

// DoneAtLeast waits until n jobs were processed.
func (w *Worker) DoneAtLeast(n int) {
	w.T.Helper()
	kit.WaitProgress(w.T, fmt.Sprintf("%d jobs are done", n), func() (now int, done bool) {
		select {
		case <-w.exited:
			w.T.Fatalf("%v ended: %v; output:\n%s", w.Argv, w.Cmd.ProcessState, w.Output)
		default:
		}
		_, lines := w.Done()
		return len(lines), len(lines) >= n
	})
}

// Counts returns the counts of a queue.
func (w *Worker) Counts(queue string) kit.QueueStats {
	w.T.Helper()
	c := w.Sidecar.Dial()
	defer c.Close() // it is called often
	for _, q := range c.Must(kit.Msg{"op": "stats", "queue": queue}).Queues {
		return q
	}
	return kit.QueueStats{}
}

// WaitEmpty waits until the queue has no job in any state.
func (w *Worker) WaitEmpty(queue string) {
	w.T.Helper()
	kit.WaitProgress(w.T, "no job of "+queue+" is left", func() (now int, done bool) {
		now = w.Counts(queue).Total()
		return now, now == 0
	})
}

// Children returns the running child processes of the worker.
func (w *Worker) Children() []string {
	w.T.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", w.Cmd.Process.Pid))
	if err != nil {
		w.T.Fatal(err)
	}
	return strings.Fields(string(text))
}

// Kill ends the worker with signal 9.
func (w *Worker) Kill() {
	w.T.Helper()
	if err := w.Cmd.Process.Kill(); err != nil {
		w.T.Fatalf("%v; output:\n%s", err, w.Output)
	}
	<-w.exited
}

// KilledInTheMiddle kills the worker while it processes n jobs and starts it again. All jobs must
// be done, and at most held jobs can be done twice: those that ran, and those whose acks were
// unanswered. One job waits at the gate, so that the kill always interrupts a job.
func (w *Worker) KilledInTheMiddle(n, held int) {
	w.T.Helper()
	c := w.Sidecar.Dial()
	c.Put("long", "-1") // a payload that no other job has
	c.Enqueue("quick", n)
	w.Start()
	w.DoneAtLeast(n / 2)
	testwait.Until(w.T, "the long job has begun", func() bool {
		byPayload, _ := w.Done()
		return byPayload["-1"] == 1
	})
	children := w.Children() // they end when the worker has ended
	w.Kill()
	w.OpenGate()
	for _, pid := range children {
		testwait.Until(w.T, "process "+pid+" of the killed worker has ended", func() bool { return !kit.IsRunning(w.T, pid) })
	}
	w.Start()
	c.Put("quick", "-2") // so that the worker is up before it is terminated
	w.WaitEmpty("quick")
	w.WaitEmpty("long")
	w.Terminate()
	byPayload, lines := w.Done()
	if len(byPayload) != n+2 || len(children) == 0 && byPayload["-1"] != 2 {
		w.T.Errorf("%d jobs of %d were done, that of the killed worker %d times, want 2", len(byPayload), n+2, byPayload["-1"])
	}
	if twice := len(lines) - len(byPayload); twice > held {
		w.T.Errorf("%d jobs were done twice after one kill of a worker that can hold %d", twice, held)
	}
}

// Terminate sends SIGTERM and waits for the exit.
func (w *Worker) Terminate() {
	w.T.Helper()
	if err := w.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.T.Fatalf("%v; output:\n%s", err, w.Output)
	}
	w.WaitExit()
}
