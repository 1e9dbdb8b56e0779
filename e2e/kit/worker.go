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

// workerMode is the environment variable that makes the test binary a worker process, which a test
// can kill. Its value is one of the modes.
const workerMode = "QSIDECAR_E2E_WORKER"

// The modes that several topics use.
const (
	modeCrash = "crash" // claim and ack one job at a time, and survive crashes of the sidecar
	ModeHold  = "hold"  // claim one job, print it, and never settle it
)

// ModeInsert runs the documented plain INSERT in the database at Socket.
const ModeInsert = "insert"

// WorkerTask describes a worker process's work, in its environment.
type WorkerTask struct {
	Name, Sidecar, Socket, Queue, History string

	Most int // how many jobs it claims at once, if the mode supports it

	LockWaits bool      // as in CrashRun
	DiesAt    eventKind // the worker kills itself at its first event of this kind; empty: it doesn't
}

const workerTaskVar = "QSIDECAR_E2E_TASK"

func runWorkerMode(mode string) int {
	var task WorkerTask
	err := json.Unmarshal([]byte(os.Getenv(workerTaskVar)), &task)
	// The parent closes stdin to end the worker. The parent's death closes it too.
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

// Pace is the pause of a worker process before it tries again.
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

// WorkerProcess is a worker that a test can kill.
type WorkerProcess struct {
	Name   string
	cmd    *exec.Cmd
	stdin  io.Closer
	Stdout io.Reader
	dies   bool          // WorkerTask.DiesAt makes it kill itself, so its death is expected
	exited chan struct{} // closed when err is set
	err    error
}

// StartWorker starts a worker process. acks, if not nil, is its descriptor 3.
func StartWorker(t testing.TB, mode string, task WorkerTask, acks *os.File) *WorkerProcess {
	t.Helper()
	text, err := json.Marshal(task)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerMode+"="+mode, workerTaskVar+"="+string(text), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	// A worker must not outlive a test run that ended by its deadline. It would try to settle its
	// job indefinitely, and keep the run's output open.
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
	p := &WorkerProcess{Name: task.Name, cmd: cmd, stdin: stdin, Stdout: stdout, dies: task.DiesAt != "", exited: make(chan struct{})}
	go func() {
		state, err := cmd.Process.Wait() // not cmd.Wait, which would close stdout before its reader ends
		if err == nil && !state.Success() && !(p.dies && state.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL) {
			err = errors.New(state.String())
		}
		p.err = err
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if it has ended
		<-p.exited
		_ = stdin.Close() // Stop may have closed it
	})
	return p
}

// Kill ends the worker with signal 9 and returns when the kill was sent.
func (p *WorkerProcess) Kill(t testing.TB) (at int64) {
	t.Helper()
	at = Monotonic()
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil && !(p.dies && errors.Is(err, os.ErrProcessDone)) {
		t.Fatalf("killing %s: %v (its result: %v)", p.Name, err, p.err)
	}
	return at
}

// Stop asks the worker to exit and checks its result.
func (p *WorkerProcess) Stop(t testing.TB) {
	t.Helper()
	_ = p.stdin.Close() // an error means that it has exited; its result is checked below
	testwait.Closed(t, p.Name+" ends", p.exited)
	if p.err != nil {
		t.Errorf("%s ended by itself: %v", p.Name, p.err)
	}
}
