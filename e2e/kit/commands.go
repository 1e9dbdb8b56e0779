package kit

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Output is the exit code and the output of a command.
type Output struct {
	Stdout, Stderr string
	Code           int
}

// RunCLI runs the binary with arguments in a clean environment, with dir as its home.
func RunCLI(t testing.TB, dir string, as *syscall.Credential, args ...string) Output {
	t.Helper()
	return RunCLIWith(t, dir, as, "", args...)
}

// RunCLIWith is RunCLI with a standard input.
func RunCLIWith(t testing.TB, dir string, as *syscall.Credential, stdin string, args ...string) Output {
	t.Helper()
	ctx := testwait.Context(t)
	cmd := exec.CommandContext(ctx, Binary, args...)
	cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "QSIDECAR_CONFIG=none", "GOCOVERDIR=" + os.Getenv("GOCOVERDIR")}
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("qsidecar %s: %v (%v)\n%s%s", strings.Join(args, " "), err, ctx.Err(), out.String(), diag.String())
	}
	return Output{out.String(), diag.String(), cmd.ProcessState.ExitCode()}
}

// WantError checks that a command failed with the code, and that its short output contains all
// texts.
func (o Output) WantError(t testing.TB, code int, words ...string) {
	t.Helper()
	t.Logf("exit %d: %s", o.Code, strings.TrimSpace(o.Stderr))
	if o.Code != code {
		t.Errorf("the exit code is %d, want %d", o.Code, code)
	}
	for _, w := range words {
		if !strings.Contains(o.Stderr, w) {
			t.Errorf("it does not say %q", w)
		}
	}
	if n := strings.Count(o.Stderr, "\n"); n > 8 {
		t.Errorf("the output has %d lines", n)
	}
}

// Check runs check and compares its exit code.
func (s *Sidecar) Check(dir string, code int, args ...string) Output {
	s.T.Helper()
	o := RunCLI(s.T, dir, nil, append([]string{"check", "--config", s.ConfigFile}, args...)...)
	if o.Code != code {
		s.T.Errorf("check %v exits with %d, want %d:\n%s%s", args, o.Code, code, o.Stdout, o.Stderr)
	}
	return o
}

// Problems returns the texts of check --json of a severity, by topic.
func (o Output) Problems(t testing.TB, severity string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(o.Stdout) {
		var f struct{ Database, Severity, Topic, Text, Fix string }
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if f.Severity == severity {
			all[f.Topic] += f.Text + " → " + f.Fix + "\n"
		}
	}
	return all
}

// WorkProcess is a running `qsidecar work`.
type WorkProcess struct {
	t         testing.TB
	cmd       *exec.Cmd
	out, Diag *LockedBuffer
	Exited    chan struct{}
}

// LockedBuffer collects the first megabyte of a process's output. It is safe for concurrent use.
type LockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *LockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() < 1<<20 {
		l.b.Write(p)
	}
	return len(p), nil
}

func (l *LockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Work starts `qsidecar work` with the arguments, in the site's directory.
func (s *Sidecar) Work(args ...string) *WorkProcess {
	s.T.Helper()
	w := &WorkProcess{t: s.T, out: new(LockedBuffer), Diag: new(LockedBuffer), Exited: make(chan struct{})}
	w.cmd = exec.Command(Binary, append([]string{"work", "--socket", s.Socket}, args...)...)
	w.cmd.Dir = filepath.Dir(s.Socket)
	w.cmd.Env = append(os.Environ(), "QSIDECAR_LEASE=of another job", "QSIDECAR_HEADER_OLD=of another job")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"} {
		w.cmd.Env = append(w.cmd.Env, name+"=of another job") // variables that work could inherit from its parent
	}
	w.cmd.Stdout, w.cmd.Stderr = w.out, w.Diag
	w.cmd.WaitDelay = time.Second // a grandchild can keep stderr open
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.cmd.Start(); err != nil {
		s.T.Fatal(err)
	}
	go func() {
		_ = w.cmd.Wait() // the process state has the result
		close(w.Exited)
	}()
	s.T.Cleanup(func() {
		_ = w.cmd.Process.Kill() // fails if it has ended
		<-w.Exited
		if s.T.Failed() {
			s.T.Logf("output of qsidecar work %s:\n%s%s", strings.Join(args, " "), w.out, w.Diag)
		}
	})
	return w
}

// Signal sends a signal to the process.
func (w *WorkProcess) Signal(sig syscall.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(sig); err != nil {
		w.t.Fatalf("signal %v to work: %v", sig, err)
	}
}

// WaitExit waits for the process and checks its exit code.
func (w *WorkProcess) WaitExit(code int) {
	w.t.Helper()
	testwait.Closed(w.t, "work ends", w.Exited)
	if got := w.cmd.ProcessState.ExitCode(); got != code {
		w.t.Fatalf("work exited with %d (%v), want %d:\n%s", got, w.cmd.ProcessState, code, w.Diag)
	}
}
