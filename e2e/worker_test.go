package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// workerMode is the environment variable that makes the test binary a worker: a
// process of its own that can be killed. Its value is one of the modes.
const workerMode = "QSIDECAR_E2E_WORKER"

const (
	modeCrash = "crash" // claim one, ack one, through any crash of the sidecar
	modeHold  = "hold"  // claim one, say so on stdout, and never settle it
)

// modeInsert runs the documented plain INSERT in the database at Socket.
const modeInsert = "insert"

// workerTask is what a worker process is told, in the environment.
type workerTask struct {
	Name, Sidecar, Socket, Queue, History string

	Most int // how many jobs it takes at once, where it may take several
}

const workerTaskVar = "QSIDECAR_E2E_TASK"

func runWorkerMode(mode string) int {
	var task workerTask
	err := json.Unmarshal([]byte(os.Getenv(workerTaskVar)), &task)
	// The parent closes our input to end us, and so does its death.
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	switch {
	case err != nil:
	case mode == modeHold:
		err = holdJob(task, stop)
	case mode == modeClientGo:
		err = runGoWorker()
	case mode == modeInsert:
		err = plainInsert(task.Socket)
	case mode == modeOwn:
		err = runOwnConsumer(task, stop)
	case mode == modeThrough:
		err = runThrough(task, stop)
	case mode == modeCrash:
		err = runCrashWorker(task, os.NewFile(3, "acks"), stop)
	default:
		err = fmt.Errorf("unknown mode %q", mode)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, task.Name+":", err)
		return 1
	}
	return 0
}

// holdJob claims one job, prints it, and keeps it until the process ends.
func holdJob(task workerTask, stop <-chan struct{}) error {
	w, err := dialWire(task.Socket)
	if err != nil {
		return err
	}
	defer w.Close()
	r, err := w.call(msg{"op": "claim", "queue": task.Queue, "wait_ms": 60_000})
	if err != nil {
		return err
	}
	if r.Error != nil {
		return r.Error
	}
	if err := json.NewEncoder(os.Stdout).Encode(r.Jobs[0]); err != nil {
		return err
	}
	<-stop
	return nil
}

// workerProcess is a worker that can be killed.
type workerProcess struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout io.Reader
	exited chan struct{} // closed when err is set
	err    error
}

// startWorker starts a worker process. acks, if not nil, is its file 3.
func startWorker(t testing.TB, mode string, task workerTask, acks *os.File) *workerProcess {
	t.Helper()
	text, err := json.Marshal(task)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerMode+"="+mode, workerTaskVar+"="+string(text), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	// No orphan outlives a test run that ended by its deadline: it would try for
	// ever to settle its job, and keep the run's output open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if acks != nil {
		cmd.ExtraFiles = []*os.File{acks}
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &workerProcess{name: task.Name, cmd: cmd, stdin: stdin, stdout: stdout, exited: make(chan struct{})}
	go func() {
		state, err := cmd.Process.Wait() // not cmd.Wait, which would close stdout under its reader
		if err == nil && !state.Success() {
			err = errors.New(state.String())
		}
		p.err = err
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails where it is gone already
		<-p.exited
		_ = stdin.Close() // was closed by stop, if that was called
	})
	return p
}

// kill ends the worker by signal 9 and returns when the kill was sent.
func (p *workerProcess) kill(t testing.TB) (at int64) {
	t.Helper()
	at = monotonic()
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatalf("killing %s: %v (it said: %v)", p.name, err, p.err)
	}
	return at
}

// stop asks the worker to end by itself and reports how it did.
func (p *workerProcess) stop(t testing.TB) {
	t.Helper()
	_ = p.stdin.Close() // an error means that it is gone: its exit is looked at
	select {
	case <-p.exited:
		if p.err != nil {
			t.Errorf("%s ended by itself: %v", p.name, p.err)
		}
	case <-time.After(patience):
		t.Errorf("%s did not end within %v", p.name, patience)
	}
}

// heldJob reads what a worker in modeHold prints.
func (p *workerProcess) heldJob(t testing.TB) wireJob {
	t.Helper()
	var job wireJob
	if err := json.NewDecoder(p.stdout).Decode(&job); err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	return job
}

// holdOne starts a worker process that holds a job of the queue.
func (sc *sidecar) holdOne(queue string) (*workerProcess, wireJob) {
	sc.t.Helper()
	p := startWorker(sc.t, modeHold, workerTask{Name: "holder", Socket: sc.socket, Queue: queue}, nil)
	return p, p.heldJob(sc.t)
}
