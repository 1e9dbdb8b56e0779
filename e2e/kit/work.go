package kit

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

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
func (sc *Sidecar) Work(args ...string) *WorkProcess {
	sc.T.Helper()
	w := &WorkProcess{t: sc.T, out: new(LockedBuffer), Diag: new(LockedBuffer), Exited: make(chan struct{})}
	w.cmd = exec.Command(Binary, append([]string{"work", "--socket", sc.Socket}, args...)...)
	w.cmd.Dir = filepath.Dir(sc.Socket)
	w.cmd.Env = append(os.Environ(), "QSIDECAR_LEASE=of another job", "QSIDECAR_HEADER_OLD=of another job")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"} {
		w.cmd.Env = append(w.cmd.Env, name+"=of another job") // variables that work could inherit from its parent
	}
	w.cmd.Stdout, w.cmd.Stderr = w.out, w.Diag
	w.cmd.WaitDelay = time.Second // a grandchild can keep stderr open
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.cmd.Start(); err != nil {
		sc.T.Fatal(err)
	}
	go func() {
		_ = w.cmd.Wait() // the process state has the result
		close(w.Exited)
	}()
	sc.T.Cleanup(func() {
		_ = w.cmd.Process.Kill() // fails if it has ended
		<-w.Exited
		if sc.T.Failed() {
			sc.T.Logf("output of qsidecar work %s:\n%s%s", strings.Join(args, " "), w.out, w.Diag)
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

// Script writes an executable shell script into the site's directory.
func (s *Site) Script(name, text string) {
	s.T.Helper()
	path := filepath.Join(s.Dir, name)
	if err := testserver.WriteProgram(path, []byte("#!/bin/sh\n"+text)); err != nil {
		s.T.Fatal(err)
	}
}

// Read returns a file of the site's directory, or an empty string.
func (s *Site) Read(name string) string {
	s.T.Helper()
	b, err := os.ReadFile(filepath.Join(s.Dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.T.Fatal(err)
	}
	return string(b)
}

// Put enqueues payloads and returns their ids.
func (c *Conn) Put(queue string, payloads ...string) (ids []string) {
	c.t.Helper()
	for _, p := range payloads {
		ids = append(ids, c.Must(Msg{"op": "enqueue", "queue": queue, "payload": p}).Job.ID)
	}
	return ids
}

// Peek returns one job.
func (c *Conn) Peek(queue, id string) Job {
	c.t.Helper()
	jobs := c.Must(Msg{"op": "peek", "queue": queue, "ids": []string{id}}).Jobs
	if len(jobs) != 1 {
		c.t.Fatalf("peek of job %s: %+v", id, jobs)
	}
	return jobs[0]
}

// WaitEnded waits until the processes whose ids are in the site's file have ended.
func (s *Site) WaitEnded(file string, n int) {
	s.T.Helper()
	pids := strings.Fields(s.Read(file))
	if len(pids) != n {
		s.T.Fatalf("%s names the processes %v, want %d", file, pids, n)
	}
	for _, pid := range pids {
		testwait.Until(s.T, "process "+pid+" has ended", func() bool { return !IsRunning(s.T, pid) })
	}
}

// IsRunning reports whether a process exists and isn't a zombie.
func IsRunning(t testing.TB, pid string) bool {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, state, ok := bytes.Cut(stat, []byte(") "))
	return ok && state[0] != 'Z' && state[0] != 'X'
}
