package kit

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Sidecar is one process under test. Only the test's goroutine uses its methods.
type Sidecar struct {
	T                                 testing.TB
	Name, Socket, ConfigFile, LogFile string
	Wrap                              []string   // a command that runs the sidecar's command; nil: none
	Program                           string     // the program to run; empty: Binary
	Env                               []string   // additional environment
	Files                             []*os.File // its descriptors from 3 on
	SidecarTimeout                    time.Duration

	Cmd    *exec.Cmd
	exited chan struct{} // closed when the process has exited and status is set
	Status *os.ProcessState
}

// Launch starts the process and does not wait.
func (s *Sidecar) Launch() {
	s.T.Helper()
	log, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		s.T.Fatal(err)
	}
	defer log.Close()
	args := append(slices.Clone(s.Wrap), cmp.Or(s.Program, Binary), "serve", "--config", s.ConfigFile)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = s.Files
	if s.Env != nil {
		cmd.Env = append(os.Environ(), s.Env...)
	}
	// A sidecar must not outlive a test run that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.T.Fatal(err)
	}
	exited := make(chan struct{})
	s.Cmd, s.exited = cmd, exited
	go func() {
		_ = cmd.Wait() // the status has the result: a killed process isn't an error here
		s.Status = cmd.ProcessState
		close(exited)
	}()
	s.T.Cleanup(func() {
		if s.Cmd == cmd {
			_ = cmd.Process.Kill() // fails if it has ended
			<-exited
			s.showLog()
		}
	})
}

// Start launches the process and waits until it answers.
func (s *Sidecar) Start() {
	s.T.Helper()
	s.Launch()
	testwait.Until(s.T, s.Name+" answers a ping", func() bool {
		select {
		case <-s.exited:
			s.T.Fatalf("%s exited (%v):\n%s", s.Name, s.Status, s.logEnd())
		default:
		}
		w, err := DialWire(s.Socket)
		if err != nil {
			return false
		}
		defer w.Close()
		if err := w.SetDeadline(testwait.Deadline()); err != nil {
			return false
		}
		r, err := w.Call(Msg{"op": "ping"})
		return err == nil && r.Error == nil
	})
}

// WriteConfig replaces the sidecar's config atomically, as an editor does.
func (s *Sidecar) WriteConfig(text string) {
	s.T.Helper()
	next := s.ConfigFile + ".new"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		s.T.Fatal(err)
	}
	if err := os.Rename(next, s.ConfigFile); err != nil {
		s.T.Fatal(err)
	}
}

// ReadConfig returns the sidecar's config.
func (s *Sidecar) ReadConfig() string {
	s.T.Helper()
	text, err := os.ReadFile(s.ConfigFile)
	if err != nil {
		s.T.Fatal(err)
	}
	return string(text)
}

// CaughtUp returns once the sidecar has most likely read earlier requests. Nothing on the wire
// counts waiting claims, so it sends a later ping on another connection.
func (s *Sidecar) CaughtUp() {
	s.T.Helper()
	s.Dial().Must(Msg{"op": "ping"})
}

// Dial opens a connection to the sidecar.
func (s *Sidecar) Dial() *Conn {
	s.T.Helper()
	return Dial(s.T, s.Socket)
}

// Signal sends a signal to the process.
func (s *Sidecar) Signal(sig syscall.Signal) {
	s.T.Helper()
	if err := s.Cmd.Process.Signal(sig); err != nil {
		s.T.Fatalf("signal %v to %s: %v\n%s", sig, s.Name, err, s.logEnd())
	}
}

// Kill ends the process with signal 9 and waits until it has ended.
func (s *Sidecar) Kill() {
	s.T.Helper()
	s.Signal(syscall.SIGKILL)
	<-s.exited
}

// WaitExit waits for the process and returns its exit code.
func (s *Sidecar) WaitExit() int {
	s.T.Helper()
	testwait.Until(s.T, s.Name+" exits", func() bool { return !s.Alive() })
	return s.Status.ExitCode()
}

// Stopped reports whether every thread is stopped, which takes a moment after the signal.
func (s *Sidecar) Stopped() bool {
	s.T.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.Cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		s.T.Fatalf("the threads of %s: %v", s.Name, err)
	}
	for _, file := range threads {
		stat, err := os.ReadFile(file)
		if err != nil {
			return false // the thread has ended in between: try again
		}
		if _, state, ok := bytes.Cut(stat, []byte(") ")); !ok || state[0] != 'T' {
			return false
		}
	}
	return true
}

// Alive reports whether the process is running.
func (s *Sidecar) Alive() bool {
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// Identity returns the identity with which the process last joined its database, from the tables.
func (s *Sidecar) Identity() (id int64) {
	s.T.Helper()
	testwait.Until(s.T, s.Name+" has joined the database", func() bool {
		all := joinedAs.FindAllStringSubmatch(s.Log(), -1)
		if len(all) == 0 {
			return false
		}
		n, err := strconv.ParseUint(all[len(all)-1][1], 16, 64)
		id = int64(n)
		return err == nil
	})
	return id
}

var joinedAs = regexp.MustCompile(`event"?[=:]"?database_joined"?[ ,]"?sidecar"?[=:]"?([0-9a-f]{16})`)

// RSS returns the current and the peak resident memory of the process, in bytes.
func (s *Sidecar) RSS() (now, peak int64) {
	s.T.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Cmd.Process.Pid))
	if err != nil {
		s.T.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kb); n == 1 {
			now = kb << 10
		}
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kb); n == 1 {
			peak = kb << 10
		}
	}
	return now, peak
}

// Log returns everything that the process logged.
func (s *Sidecar) Log() string {
	text, err := os.ReadFile(s.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// logEnd returns the end of the log, for a failed test.
func (s *Sidecar) logEnd() string {
	text := s.Log()
	return text[max(0, len(text)-4<<10):]
}

// showLog adds the log to a failed test. It fails the test if the program panicked.
func (s *Sidecar) showLog() {
	text := s.Log()
	if strings.Contains(text, "panic") || strings.Contains(text, "goroutine ") {
		s.T.Errorf("%s panicked", s.Name)
	}
	if s.T.Failed() {
		s.T.Logf("the log of %s ends:\n%s", s.Name, s.logEnd())
	}
}

// Events counts the lines of a log by event, in either log format.
func (s *Sidecar) Events() map[string]int {
	s.T.Helper()
	log, err := os.ReadFile(s.LogFile)
	if err != nil {
		s.T.Fatal(err)
	}
	counts := map[string]int{}
	for _, m := range logEvent.FindAllSubmatch(log, -1) {
		counts[string(m[1])]++
	}
	return counts
}

var logEvent = regexp.MustCompile(`(?m)^(?:time=.*? event=|\{"time":.*?"event":")(\w+)`)
