package kit

import (
	"bytes"
	"cmp"
	"database/sql"
	"errors"
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

	"golang.org/x/sys/unix"

	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Site is a database with any number of sidecars before it.
type Site struct {
	T   testing.TB
	Dir string // short, because socket paths are, and everybody may look in

	URL             string             // the database
	HostLease       time.Duration      // written into every config
	readers         map[string]*sql.DB // by URL
	restartGrace    time.Duration      // 0: the default
	DatabaseOptions string             // more of the database's config, each with a comma before it
	Extra           string             // more lines of config, at the top level
	Queues          string             // the config's queues; made by first use unless it says else
}

// NewSite is a site on a new SQLite file.
func NewSite(t testing.TB) *Site {
	t.Helper()
	dir, err := os.MkdirTemp(testserver.Place(), "qs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return &Site{
		readers: map[string]*sql.DB{},
		T:       t, Dir: dir, URL: "sqlite:" + filepath.Join(dir, "q.db"),
		HostLease: 30 * time.Second, // the program's default: no machine stands still for so long
		Queues:    "  \"*\": {}\n",
	}
}

// File is the site's SQLite database.
func (s *Site) File() string { return strings.TrimPrefix(s.URL, "sqlite:") }

// Sidecar describes one; start starts it.
func (s *Site) Sidecar(name string) *Sidecar {
	s.T.Helper()
	sc := &Sidecar{
		T: s.T, Name: name,
		Socket:     filepath.Join(s.Dir, name+".sock"),
		ConfigFile: filepath.Join(s.Dir, name+".yaml"),
		LogFile:    filepath.Join(s.Dir, name+".log"), hostLease: s.HostLease,
	}
	grace := ""
	if s.restartGrace > 0 {
		grace = fmt.Sprintf(", restart_grace: %s", Duration(s.restartGrace))
	}
	text := fmt.Sprintf("listen:\n  - socket: %s\ndatabases:\n  main: {url: %q, host_lease: %s%s%s}\n%squeues:\n%s",
		sc.Socket, s.URL, Duration(s.HostLease), grace, s.DatabaseOptions, s.Extra, s.Queues)
	if err := os.WriteFile(sc.ConfigFile, []byte(text), 0o644); err != nil {
		s.T.Fatal(err)
	}
	return sc
}

// Duration writes d as the config does.
func Duration(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }

// Start is a running sidecar.
func (s *Site) Start(name string) *Sidecar {
	s.T.Helper()
	sc := s.Sidecar(name)
	sc.Start()
	return sc
}

// Sidecar is one process under test. Its methods belong to the test's goroutine.
type Sidecar struct {
	T                                 testing.TB
	Name, Socket, ConfigFile, LogFile string
	Wrap                              []string   // a command that runs the sidecar's; nil: none
	Program                           string     // the program to run; empty: binary
	Env                               []string   // more of its environment
	Files                             []*os.File // its descriptors from 3 on
	hostLease                         time.Duration

	Cmd    *exec.Cmd
	exited chan struct{} // closed when the process is gone and status is set
	Status *os.ProcessState
}

// Launch starts the process and waits for nothing.
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
	// No orphan outlives a test run that was itself killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		sc.T.Fatal(err)
	}
	exited := make(chan struct{})
	sc.Cmd, sc.exited = cmd, exited
	go func() {
		_ = cmd.Wait() // the status says all: a killed process is no error here
		sc.Status = cmd.ProcessState
		close(exited)
	}()
	sc.T.Cleanup(func() {
		if sc.Cmd == cmd {
			_ = cmd.Process.Kill() // fails where it is gone already
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

// Kill ends the process by signal 9 and waits until it is gone.
func (sc *Sidecar) Kill() {
	sc.T.Helper()
	sc.Signal(syscall.SIGKILL)
	<-sc.exited
}

// WaitExit waits for the process's end and returns its exit code.
func (sc *Sidecar) WaitExit() int {
	sc.T.Helper()
	testwait.Until(sc.T, sc.Name+" exits", func() bool { return !sc.Alive() })
	return sc.Status.ExitCode()
}

// Stopped reports whether every thread has stopped: a signal takes its time.
func (sc *Sidecar) Stopped() bool {
	sc.T.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", sc.Cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		sc.T.Fatalf("the threads of %s: %v", sc.Name, err)
	}
	for _, file := range threads {
		stat, err := os.ReadFile(file)
		if err != nil {
			return false // it ended just now: look again
		}
		if _, state, ok := bytes.Cut(stat, []byte(") ")); !ok || state[0] != 'T' {
			return false
		}
	}
	return true
}

// Alive reports whether the process still runs.
func (sc *Sidecar) Alive() bool {
	select {
	case <-sc.exited:
		return false
	default:
		return true
	}
}

// Identity is the identity under which the process joined its database last, as the
// tables have it.
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

var joinedAs = regexp.MustCompile(`joined the database.*host"?[=:]"?([0-9a-f]{16})`)

// RSS is the process's resident memory now, and the most it ever was, in bytes.
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

// Log is all that the process logged.
func (sc *Sidecar) Log() string {
	text, err := os.ReadFile(sc.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// logEnd is as much of it as helps who reads of a failed test.
func (sc *Sidecar) logEnd() string {
	text := sc.Log()
	return text[max(0, len(text)-4<<10):]
}

// showLog adds the log to a failed test, and fails it where the program panicked.
func (sc *Sidecar) showLog() {
	text := sc.Log()
	if strings.Contains(text, "panic") || strings.Contains(text, "goroutine ") {
		sc.T.Errorf("%s panicked", sc.Name)
	}
	if sc.T.Failed() {
		sc.T.Logf("the log of %s ends:\n%s", sc.Name, sc.logEnd())
	}
}

// WaitProgress waits for done. The limit is for each change of the number that look
// returns, however long all of it takes.
func WaitProgress(t testing.TB, what string, look func() (now int, done bool)) {
	t.Helper()
	last, over := -1, false
	for !over {
		testwait.Until(t, what, func() bool {
			now, done := look()
			changed := now != last
			last, over = now, done
			return done || changed
		})
	}
}

// Monotonic is a clock that all processes of this machine share, in nanoseconds.
func Monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // only for a clock that the kernel does not know
	}
	return ts.Nano()
}

// Since is how long ago a reading of monotonic was.
func Since(at int64) time.Duration { return time.Duration(Monotonic() - at) }

// IsReset reports whether the error is a connection that the other side has closed.
func IsReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
