// Package child runs functions of a test binary as processes of their own, which a test can kill.
package child

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// The environment of a child: the name of its mode, and its task as JSON.
const (
	modeVar = "QSIDECAR_E2E_CHILD"
	taskVar = "QSIDECAR_E2E_TASK"
)

// modes are all modes of the test binary, by name.
var modes = map[string]func(task []byte, stop <-chan struct{}) error{}

// Mode is a function that a test runs in processes of its own. It gets a task of type T.
type Mode[T any] struct{ name string }

// NewMode returns a mode. Call it for a variable of a package, so that it also exists in the process. run ends when stop is closed.
func NewMode[T any](name string, run func(task T, stop <-chan struct{}) error) Mode[T] {
	if modes[name] != nil {
		panic("two modes are called " + name)
	}
	modes[name] = func(text []byte, stop <-chan struct{}) error {
		var task T
		if err := json.Unmarshal(text, &task); err != nil {
			return err
		}
		return run(task, stop)
	}
	return Mode[T]{name}
}

// Main runs the mode and ends the process if this process is a child. Otherwise it does nothing.
func Main() {
	name, is := os.LookupEnv(modeVar)
	if !is {
		return
	}
	// The parent closes stdin to end the child. The parent's death closes it too.
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	err := fmt.Errorf("unknown mode %q", name)
	if run := modes[name]; run != nil {
		err = run([]byte(os.Getenv(taskVar)), stop)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Args[1:], err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Env returns the environment that makes a run of the test binary a child.
func (m Mode[T]) Env(task T) ([]string, error) {
	text, err := json.Marshal(task)
	return []string{modeVar + "=" + m.name, taskVar + "=" + string(text)}, err
}

// Options describe a child apart from its task.
type Options struct {
	Name  string
	Files []*os.File // its descriptors from 3 on
	Dies  bool       // it kills itself, so its death is expected
}

// Process is a child that runs.
type Process struct {
	Options
	Stdout io.Reader
	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{} // closed when err is set
	err    error
}

// Start starts a child, which ends with the test.
func (m Mode[T]) Start(t testing.TB, o Options, task T) *Process {
	t.Helper()
	env, err := m.Env(task)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], o.Name) // the name is for ps and for the error
	cmd.Env = append(append(os.Environ(), env...), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	// A child must not outlive a test run that ended by its deadline. It would try to settle its
	// job indefinitely, and keep the run's output open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.ExtraFiles = o.Files
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
	p := &Process{Options: o, cmd: cmd, stdin: stdin, Stdout: stdout, exited: make(chan struct{})}
	go func() {
		state, err := cmd.Process.Wait() // not cmd.Wait, which would close stdout before its reader ends
		if err == nil && !state.Success() && !(p.Dies && state.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL) {
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

// Kill ends the process with signal 9 and returns when the signal was sent.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil && !(p.Dies && errors.Is(err, os.ErrProcessDone)) {
		t.Fatalf("killing %s: %v (its result: %v)", p.Name, err, p.err)
	}
}

// KillAndWait ends the process with signal 9 and returns when it has ended.
func (p *Process) KillAndWait(t testing.TB) {
	t.Helper()
	p.Kill(t)
	<-p.exited
}

// Exited returns a channel that is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err returns why the process ended. It is nil if it ended as it should. Call it after the end.
func (p *Process) Err() error { return p.err }

// AskToStop asks the process to exit.
func (p *Process) AskToStop() { _ = p.stdin.Close() } // an error means that it has exited; Stop reports its result

// Stop asks the process to exit and checks its result.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	p.AskToStop()
	testwait.Closed(t, p.Name+" ends", p.exited)
	if p.err != nil {
		t.Errorf("%s ended by itself: %v", p.Name, p.err)
	}
}
