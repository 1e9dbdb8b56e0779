package kit

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

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// workerMode is the environment variable that makes the test binary a worker: a
// process of its own that can be killed. Its value is one of the modes.
const workerMode = "QSIDECAR_E2E_WORKER"

// The workers that are not of one topic.
const (
	modeCrash = "crash" // claim one, ack one, through any crash of the sidecar
	ModeHold  = "hold"  // claim one, say so on stdout, and never settle it
)

// ModeInsert runs the documented plain INSERT in the database at Socket.
const ModeInsert = "insert"

// WorkerTask is what a worker process is told, in the environment.
type WorkerTask struct {
	Name, Sidecar, Socket, Queue, History string

	Most int // how many jobs it takes at once, where it may take several
}

const workerTaskVar = "QSIDECAR_E2E_TASK"

func runWorkerMode(mode string) int {
	var task WorkerTask
	err := json.Unmarshal([]byte(os.Getenv(workerTaskVar)), &task)
	// The parent closes our input to end us, and so does its death.
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	switch {
	case err != nil:
	case mode == ModeHold:
		err = holdJob(task, stop)
	case mode == modeClientGo:
		err = runGoWorker()
	case mode == ModeInsert:
		err = plainInsert(task.Socket)
	case mode == ModeOwn:
		err = runOwnConsumer(task, stop)
	case mode == ModeThrough:
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

// Pace is the pause of a worker process before it tries something again.
func Pace() { time.Sleep(5 * time.Millisecond) }

// holdJob claims one job, prints it, and keeps it until the process ends.
func holdJob(task WorkerTask, stop <-chan struct{}) error {
	w, err := DialWire(task.Socket)
	if err != nil {
		return err
	}
	defer w.Close()
	r, err := w.Call(Msg{"op": "claim", "queue": task.Queue, "wait_ms": 60_000})
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

// WorkerProcess is a worker that can be killed.
type WorkerProcess struct {
	Name   string
	cmd    *exec.Cmd
	stdin  io.Closer
	Stdout io.Reader
	exited chan struct{} // closed when err is set
	err    error
}

// StartWorker starts a worker process. acks, if not nil, is its file 3.
func StartWorker(t testing.TB, mode string, task WorkerTask, acks *os.File) *WorkerProcess {
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
	p := &WorkerProcess{Name: task.Name, cmd: cmd, stdin: stdin, Stdout: stdout, exited: make(chan struct{})}
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

// Kill ends the worker by signal 9 and returns when the kill was sent.
func (p *WorkerProcess) Kill(t testing.TB) (at int64) {
	t.Helper()
	at = Monotonic()
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatalf("killing %s: %v (it said: %v)", p.Name, err, p.err)
	}
	return at
}

// Stop asks the worker to end by itself and reports how it did.
func (p *WorkerProcess) Stop(t testing.TB) {
	t.Helper()
	_ = p.stdin.Close() // an error means that it is gone: its exit is looked at
	testwait.Closed(t, p.Name+" ends", p.exited)
	if p.err != nil {
		t.Errorf("%s ended by itself: %v", p.Name, p.err)
	}
}
