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
func (sc *Sidecar) Launch() {
	sc.T.Helper()
	log, err := os.OpenFile(sc.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		sc.T.Fatal(err)
	}
	defer log.Close()
	args := append(slices.Clone(sc.Wrap), cmp.Or(sc.Program, Binary), "serve", "--config", sc.ConfigFile)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = sc.Files
	if sc.Env != nil {
		cmd.Env = append(os.Environ(), sc.Env...)
	}
	// A sidecar must not outlive a test run that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		sc.T.Fatal(err)
	}
	exited := make(chan struct{})
	sc.Cmd, sc.exited = cmd, exited
	go func() {
		_ = cmd.Wait() // the status has the result: a killed process isn't an error here
		sc.Status = cmd.ProcessState
		close(exited)
	}()
	sc.T.Cleanup(func() {
		if sc.Cmd == cmd {
			_ = cmd.Process.Kill() // fails if it has ended
			<-exited
			sc.showLog()
		}
	})
}

// Start launches the process and waits until it answers.
func (sc *Sidecar) Start() {
	sc.T.Helper()
	sc.Launch()
	testwait.Until(sc.T, sc.Name+" answers a ping", func() bool {
		select {
		case <-sc.exited:
			sc.T.Fatalf("%s exited (%v):\n%s", sc.Name, sc.Status, sc.logEnd())
		default:
		}
		w, err := DialWire(sc.Socket)
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
func (sc *Sidecar) WriteConfig(text string) {
	sc.T.Helper()
	next := sc.ConfigFile + ".new"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		sc.T.Fatal(err)
	}
	if err := os.Rename(next, sc.ConfigFile); err != nil {
		sc.T.Fatal(err)
	}
}

// ReadConfig returns the sidecar's config.
func (sc *Sidecar) ReadConfig() string {
	sc.T.Helper()
	text, err := os.ReadFile(sc.ConfigFile)
	if err != nil {
		sc.T.Fatal(err)
	}
	return string(text)
}

// CaughtUp returns once the sidecar has most likely read earlier requests. Nothing on the wire
// counts waiting claims, so it sends a later ping on another connection.
func (sc *Sidecar) CaughtUp() {
	sc.T.Helper()
	sc.Dial().Must(Msg{"op": "ping"})
}

// Dial opens a connection to the sidecar.
func (sc *Sidecar) Dial() *Conn {
	sc.T.Helper()
	return Dial(sc.T, sc.Socket)
}

// Signal sends a signal to the process.
func (sc *Sidecar) Signal(sig syscall.Signal) {
	sc.T.Helper()
	if err := sc.Cmd.Process.Signal(sig); err != nil {
		sc.T.Fatalf("signal %v to %s: %v\n%s", sig, sc.Name, err, sc.logEnd())
	}
}

// Kill ends the process with signal 9 and waits until it has ended.
func (sc *Sidecar) Kill() {
	sc.T.Helper()
	sc.Signal(syscall.SIGKILL)
	<-sc.exited
}

// WaitExit waits for the process and returns its exit code.
func (sc *Sidecar) WaitExit() int {
	sc.T.Helper()
	testwait.Until(sc.T, sc.Name+" exits", func() bool { return !sc.Alive() })
	return sc.Status.ExitCode()
}

// Stopped reports whether every thread is stopped, which takes a moment after the signal.
func (sc *Sidecar) Stopped() bool {
	sc.T.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", sc.Cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		sc.T.Fatalf("the threads of %s: %v", sc.Name, err)
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
func (sc *Sidecar) Alive() bool {
	select {
	case <-sc.exited:
		return false
	default:
		return true
	}
}

// Identity returns the identity with which the process last joined its database, from the tables.
func (sc *Sidecar) Identity() (id int64) {
	sc.T.Helper()
	testwait.Until(sc.T, sc.Name+" has joined the database", func() bool {
		all := joinedAs.FindAllStringSubmatch(sc.Log(), -1)
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
func (sc *Sidecar) RSS() (now, peak int64) {
	sc.T.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", sc.Cmd.Process.Pid))
	if err != nil {
		sc.T.Fatal(err)
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
func (sc *Sidecar) Log() string {
	text, err := os.ReadFile(sc.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// logEnd returns the end of the log, for a failed test.
func (sc *Sidecar) logEnd() string {
	text := sc.Log()
	return text[max(0, len(text)-4<<10):]
}

// showLog adds the log to a failed test. It fails the test if the program panicked.
func (sc *Sidecar) showLog() {
	text := sc.Log()
	if strings.Contains(text, "panic") || strings.Contains(text, "goroutine ") {
		sc.T.Errorf("%s panicked", sc.Name)
	}
	if sc.T.Failed() {
		sc.T.Logf("the log of %s ends:\n%s", sc.Name, sc.logEnd())
	}
}

// Events counts the lines of a log by event, in either log format.
func (sc *Sidecar) Events() map[string]int {
	sc.T.Helper()
	log, err := os.ReadFile(sc.LogFile)
	if err != nil {
		sc.T.Fatal(err)
	}
	counts := map[string]int{}
	for _, m := range logEvent.FindAllSubmatch(log, -1) {
		counts[string(m[1])]++
	}
	return counts
}

var logEvent = regexp.MustCompile(`(?m)^(?:time=.*? event=|\{"time":.*?"event":")(\w+)`)
