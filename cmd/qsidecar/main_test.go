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
	if len(os.Args) > 1 && os.Args[1] == worker.GuardCommand { // this program starts itself beside a worker
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// host is a place with an environment of its own for runs of the program.
type host struct {
	t        *testing.T
	dir      string // short: socket paths are
	env      map[string]string
	terminal bool          // a person sits at stdin
	poll     time.Duration // see app
	patience time.Duration
	leave    time.Duration
	answer   time.Duration
	deaf     bool
	opens    databases.Opener
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

// socket is where a sidecar is by default.
func (h *host) socket() string { return filepath.Join(h.dir, "run", "qsidecar", "qsidecar.sock") }

// file writes a file and gives its path.
func (h *host) file(name, text string) string {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// result is how a run ended and what it said.
type result struct {
	code     int
	out, err string
}

func (h *host) app(in io.Reader, out, errOut io.Writer, signals <-chan os.Signal) *app {
	terminal := h.terminal // as it is now: a sidecar asks later
	return &app{
		in: in, out: out, errOut: errOut, signals: signals,
		env:          func(k string) (string, bool) { v, ok := h.env[k]; return v, ok },
		terminal:     func(any) bool { return terminal },
		pipeTimeout:  testwait.Limit,
		pollInterval: h.poll, noEvents: h.deaf, openTimeout: h.patience, byeTimeout: h.leave, callTimeout: h.answer, open: h.opens,
	}
}

// run runs the program to its end.
func (h *host) run(args ...string) result { return h.runWith("", args...) }

func (h *host) runWith(stdin string, args ...string) result {
	var out, errOut bytes.Buffer
	code := h.app(strings.NewReader(stdin), &out, &errOut, nil).main(args)
	return result{code, out.String(), errOut.String()}
}

// must is run where the exit code is known.
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

// running is a run that goes on.
type running struct {
	t       *testing.T
	signals chan os.Signal
	out     *text
	errOut  *text
	done    chan struct{} // closed at the end
	code    int           // the exit code, at the end
}

// start runs the program beside the test, which must end it.
func (h *host) start(in io.Reader, args ...string) *running {
	r := &running{t: h.t, signals: make(chan os.Signal, 2), out: newText(), errOut: newText(), done: make(chan struct{})}
	r.run(h.app(in, r.out, r.errOut, r.signals), args)
	return r
}

// run runs a program that writes to r's texts. A test that fails shows them.
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
	r.says("serving on")
	return r
}

// says waits until stdout holds a text.
func (r *running) says(want string) {
	r.t.Helper()
	testwait.Until(r.t, fmt.Sprintf("it says %q", want), func() bool {
		return strings.Contains(r.out.String(), want) || r.ended()
	})
	if !strings.Contains(r.out.String(), want) {
		r.t.Fatalf("it ended (%d) and did not say %q", r.code, want)
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

// stop sends SIGTERM and gives the exit code.
func (r *running) stop() int {
	r.t.Helper()
	select {
	case r.signals <- syscall.SIGTERM:
	default: // it has two already
	}
	return r.wait()
}

func (r *running) wait() int {
	r.t.Helper()
	testwait.Closed(r.t, "the program's end", r.done)
	return r.code
}

// text collects what is written.
type text struct {
	mu sync.Mutex
	b  strings.Builder
}

func newText() *text { return &text{} }

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.Write(p)
}

// reset forgets what was written.
func (x *text) reset() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.b.Reset()
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.String()
}

// listenUnix is a socket that is no sidecar's; it answers every connection with f.
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

// asNobody runs f as a user without rights over the root's files.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f() // this user has no right over what is closed to it either
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
