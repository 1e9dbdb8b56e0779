package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/qsidecar/qsidecar/internal/databases"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/internal/worker"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == worker.GuardCommand { // a worker starts its own program as guard
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// host is a directory with an environment for runs of the program.
type host struct {
	t           *testing.T
	dir         string // short, because socket paths are
	env         map[string]string
	terminal    bool          // stdin is a terminal
	poll        time.Duration // see app
	openTimeout time.Duration
	byeTimeout  time.Duration
	callTimeout time.Duration
	progress    time.Duration
	noEvents    bool
	open        databases.Opener
}

func newHost(t *testing.T) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "qs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &host{t: t, dir: dir, env: map[string]string{
		"HOME": dir, "XDG_STATE_HOME": filepath.Join(dir, "state"), "XDG_RUNTIME_DIR": filepath.Join(dir, "run"),
	}}
}

// socket returns the default path of the socket.
func (h *host) socket() string { return filepath.Join(h.dir, "run", "qsidecar", "qsidecar.sock") }

// systemSocket returns the path that stands for /run/qsidecar/qsidecar.sock.
func (h *host) systemSocket() string { return filepath.Join(h.dir, "system", "qsidecar.sock") }

// systemFile returns the path that stands for /etc/qsidecar/config.yaml.
func (h *host) systemFile() string { return filepath.Join(h.dir, "etc", "config.yaml") }

// file writes a file and returns its path.
func (h *host) file(name, text string) string {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// result is the exit code and the output of a run.
type result struct {
	code     int
	out, err string
}

func (h *host) app(in io.Reader, out, errOut io.Writer, signals <-chan os.Signal) *app {
	terminal := h.terminal // its value now
	return &app{
		in: in, out: out, errOut: errOut, signals: signals,
		env:          func(k string) (string, bool) { v, ok := h.env[k]; return v, ok },
		terminal:     func(any) bool { return terminal },
		systemFile:   h.systemFile(),
		systemSocket: h.systemSocket(),
		pipeTimeout:  testwait.Limit,
		pollInterval: h.poll, noEvents: h.noEvents, openTimeout: h.openTimeout, byeTimeout: h.byeTimeout, callTimeout: h.callTimeout, progressTick: h.progress, open: h.open,
	}
}

// run runs the program to its end.
func (h *host) run(args ...string) result { return h.runWith("", args...) }

func (h *host) runWith(stdin string, args ...string) result {
	var out, errOut bytes.Buffer
	code := h.app(strings.NewReader(stdin), &out, &errOut, nil).main(args)
	return result{code, out.String(), errOut.String()}
}

// must is run with a known exit code.
func (h *host) must(code int, args ...string) string {
	h.t.Helper()
	return h.mustWith(code, "", args...)
}

func (h *host) mustWith(code int, stdin string, args ...string) string {
	h.t.Helper()
	r := h.runWith(stdin, args...)
	if r.code != code {
		h.t.Fatalf("qsidecar %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), r.code, code, r.out, r.err)
	}
	return r.out
}

// running is a program that runs.
type running struct {
	t       *testing.T
	signals chan os.Signal
	out     *text
	errOut  *text
	done    chan struct{} // closed at the end
	code    int           // the exit code, valid at the end
}

// start runs the program in the background. The test must end it.
func (h *host) start(in io.Reader, args ...string) *running {
	r := &running{t: h.t, signals: make(chan os.Signal, 2), out: newText(), errOut: newText(), done: make(chan struct{})}
	r.run(h.app(in, r.out, r.errOut, r.signals), args)
	return r
}

// run runs a program that writes to r's buffers. A failed test logs them.
func (r *running) run(a *app, args []string) {
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("qsidecar %s:\n%s%s", strings.Join(args, " "), r.out, r.errOut)
		}
	})
	go func() {
		defer close(r.done)
		r.code = a.main(args)
	}()
}

// serve starts a sidecar, waits until it serves, and ends it with the test.
func (h *host) serve(args ...string) *running {
	h.t.Helper()
	r := h.start(strings.NewReader(""), append([]string{"serve"}, args...)...)
	h.t.Cleanup(func() { r.stop() })
	r.waitForOutput("serving on")
	return r
}

// waitForOutput waits until stdout contains a text.
func (r *running) waitForOutput(want string) {
	r.t.Helper()
	testwait.Until(r.t, fmt.Sprintf("it prints %q", want), func() bool {
		return strings.Contains(r.out.String(), want) || r.ended()
	})
	if !strings.Contains(r.out.String(), want) {
		r.t.Fatalf("it ended (%d) and did not print %q", r.code, want)
	}
}

func (r *running) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// stop sends SIGTERM and returns the exit code.
func (r *running) stop() int {
	r.t.Helper()
	select {
	case r.signals <- syscall.SIGTERM:
	default: // two are pending already
	}
	return r.wait()
}

func (r *running) wait() int {
	r.t.Helper()
	testwait.Closed(r.t, "the program's end", r.done)
	return r.code
}

// text is a buffer for several goroutines.
type text struct {
	mu sync.Mutex
	b  strings.Builder
}

func newText() *text { return &text{} }

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// listenUnix listens on a socket and calls f for each connection.
func listenUnix(t *testing.T, path string, f func(net.Conn)) {
	t.Helper()
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			f(conn)
			conn.Close()
		}
	})
	t.Cleanup(func() {
		ln.Close()
		done.Wait()
	})
}

// asUnprivileged runs f as a user without the rights of root.
func asUnprivileged(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f() // this user lacks those rights too
		return
	}
	if err := setEUID(65534); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := setEUID(0); err != nil {
			panic(fmt.Sprintf("cannot become root again: %v", err))
		}
	}()
	f()
}

// setEUID changes the effective user of the whole process.
func setEUID(uid int) error { return syscall.Setreuid(-1, uid) }
