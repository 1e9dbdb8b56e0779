package e2e

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// site is a database with any number of sidecars before it.
type site struct {
	t   testing.TB
	dir string // short, because socket paths are, and everybody may look in

	url          string        // the database
	hostLease    time.Duration // written into every config
	restartGrace time.Duration // 0: the default
	database     string        // more of the database's config, each with a comma before it
	extra        string        // more lines of config, at the top level
	queues       string        // the config's queues; made by first use unless it says else
}

func newSite(t testing.TB) *site {
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
	return &site{
		t: t, dir: dir, url: "sqlite:" + filepath.Join(dir, "q.db"),
		hostLease: 10 * time.Second, queues: "  \"*\": {}\n",
	}
}

// file is the site's SQLite database.
func (s *site) file() string { return strings.TrimPrefix(s.url, "sqlite:") }

// sidecar describes one; start starts it.
func (s *site) sidecar(name string) *sidecar {
	s.t.Helper()
	sc := &sidecar{
		t: s.t, name: name,
		socket: filepath.Join(s.dir, name+".sock"),
		config: filepath.Join(s.dir, name+".yaml"),
		log:    filepath.Join(s.dir, name+".log"), hostLease: s.hostLease,
	}
	grace := ""
	if s.restartGrace > 0 {
		grace = fmt.Sprintf(", restart_grace: %s", duration(s.restartGrace))
	}
	text := fmt.Sprintf("listen:\n  - socket: %s\ndatabases:\n  main: {url: %q, host_lease: %s%s%s}\n%squeues:\n%s",
		sc.socket, s.url, duration(s.hostLease), grace, s.database, s.extra, s.queues)
	if err := os.WriteFile(sc.config, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	return sc
}

// duration writes d as the config does.
func duration(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }

// started is a running sidecar.
func (s *site) started(name string) *sidecar {
	s.t.Helper()
	sc := s.sidecar(name)
	sc.start()
	return sc
}

// sidecar is one process under test. Its methods belong to the test's goroutine.
type sidecar struct {
	t                         testing.TB
	name, socket, config, log string
	wrap                      []string   // a command that runs the sidecar's; nil: none
	program                   string     // the program to run; empty: binary
	env                       []string   // more of its environment
	files                     []*os.File // its descriptors from 3 on
	hostLease                 time.Duration

	cmd    *exec.Cmd
	exited chan struct{} // closed when the process is gone and status is set
	status *os.ProcessState
}

// launch starts the process and waits for nothing.
func (sc *sidecar) launch() {
	sc.t.Helper()
	log, err := os.OpenFile(sc.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		sc.t.Fatal(err)
	}
	defer log.Close()
	args := append(slices.Clone(sc.wrap), cmp.Or(sc.program, binary), "serve", "--config", sc.config)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = sc.files
	if sc.env != nil {
		cmd.Env = append(os.Environ(), sc.env...)
	}
	// No orphan outlives a test run that was itself killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		sc.t.Fatal(err)
	}
	exited := make(chan struct{})
	sc.cmd, sc.exited = cmd, exited
	go func() {
		_ = cmd.Wait() // the status says all: a killed process is no error here
		sc.status = cmd.ProcessState
		close(exited)
	}()
	sc.t.Cleanup(func() {
		if sc.cmd == cmd {
			_ = cmd.Process.Kill() // fails where it is gone already
			<-exited
			sc.showLog()
		}
	})
}

// start launches the process and waits until it answers.
func (sc *sidecar) start() {
	sc.t.Helper()
	sc.launch()
	eventually(sc.t, patience, sc.name+" answers a ping", func() bool {
		select {
		case <-sc.exited:
			sc.t.Fatalf("%s exited (%v):\n%s", sc.name, sc.status, sc.logEnd())
		default:
		}
		w, err := dialWire(sc.socket)
		if err != nil {
			return false
		}
		defer w.Close()
		if err := w.SetDeadline(time.Now().Add(patience)); err != nil {
			return false
		}
		r, err := w.call(msg{"op": "ping"})
		return err == nil && r.Error == nil
	})
}

func (sc *sidecar) dial() *conn {
	sc.t.Helper()
	return dial(sc.t, sc.socket)
}

func (sc *sidecar) signal(sig syscall.Signal) {
	sc.t.Helper()
	if err := sc.cmd.Process.Signal(sig); err != nil {
		sc.t.Fatalf("signal %v to %s: %v\n%s", sig, sc.name, err, sc.logEnd())
	}
}

// kill ends the process by signal 9 and waits until it is gone.
func (sc *sidecar) kill() {
	sc.t.Helper()
	sc.signal(syscall.SIGKILL)
	<-sc.exited
}

// exit waits for the process's end and returns its exit code.
func (sc *sidecar) exit(d time.Duration) int {
	sc.t.Helper()
	select {
	case <-sc.exited:
		return sc.status.ExitCode()
	case <-time.After(d):
		sc.t.Fatalf("%s did not exit within %v:\n%s", sc.name, d, sc.logEnd())
		return -1
	}
}

// stopped reports whether every thread has stopped: a signal takes its time.
func (sc *sidecar) stopped() bool {
	sc.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", sc.cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		sc.t.Fatalf("the threads of %s: %v", sc.name, err)
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

// alive reports whether the process still runs.
func (sc *sidecar) alive() bool {
	select {
	case <-sc.exited:
		return false
	default:
		return true
	}
}

// rss is the process's resident memory now, and the most it ever was, in bytes.
func (sc *sidecar) rss() (now, peak int64) {
	sc.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", sc.cmd.Process.Pid))
	if err != nil {
		sc.t.Fatal(err)
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

// readLog is all that the process logged.
func (sc *sidecar) readLog() string {
	text, err := os.ReadFile(sc.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// logEnd is as much of it as helps who reads of a failed test.
func (sc *sidecar) logEnd() string {
	text := sc.readLog()
	return text[max(0, len(text)-4<<10):]
}

// showLog adds the log to a failed test, and fails it where the program panicked.
func (sc *sidecar) showLog() {
	text := sc.readLog()
	if strings.Contains(text, "panic") || strings.Contains(text, "goroutine ") {
		sc.t.Errorf("%s panicked", sc.name)
	}
	if sc.t.Failed() {
		sc.t.Logf("the log of %s ends:\n%s", sc.name, sc.logEnd())
	}
}

// eventually waits for a fact.
func eventually(t testing.TB, d time.Duration, what string, fact func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(d); !fact(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

// pass lets a span pass that is itself what the test is about (lease periods).
func pass(d time.Duration) { <-time.After(d) }

// monotonic is a clock that all processes of this machine share, in nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // only for a clock that the kernel does not know
	}
	return ts.Nano()
}

// since is how long ago a reading of monotonic was.
func since(at int64) time.Duration { return time.Duration(monotonic() - at) }

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
