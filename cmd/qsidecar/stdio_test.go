package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// child is a run of stdio over pipes, like that of a parent process.
type child struct {
	t      *testing.T
	stdin  *os.File // the parent's ends
	out    *os.File
	lines  *bufio.Reader
	stdout *os.File // the child's end of out
	stop   chan os.Signal
	code   chan int
	errOut *text
}

func (h *host) child(args ...string) *child {
	h.t.Helper()
	inR, inW, err := os.Pipe()
	if err != nil {
		h.t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		h.t.Fatal(err)
	}
	c := &child{t: h.t, stdin: inW, out: outR, stdout: outW, lines: bufio.NewReader(outR), stop: make(chan os.Signal), code: make(chan int, 1), errOut: newText()}
	h.t.Cleanup(func() {
		inW.Close()
		outR.Close()
	})
	a := h.app(inR, outW, c.errOut, c.stop)
	go func() {
		code := a.main(append([]string{"stdio"}, args...))
		inR.Close()
		outW.Close()
		c.code <- code
	}()
	return c
}

// request writes a line and reads one.
func (c *child) request(line string) string {
	c.t.Helper()
	if _, err := io.WriteString(c.stdin, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
	answer, err := c.lines.ReadString('\n')
	if err != nil {
		c.t.Fatalf("after %q: %v", answer, err)
	}
	return answer
}

// TestStdioEnds checks that closing stdin gives jobs back, and that the death of the parent
// counts as a failed attempt.
func TestStdioEnds(t *testing.T) {
	for _, sidecar := range []string{"the host's", "its own"} {
		t.Run(sidecar, func(t *testing.T) {
			h := newHost(t)
			var args []string
			look := h.serve
			look("--database", "sqlite:"+h.dir+"/q.db")
			if sidecar == "its own" {
				args = []string{"--database", "sqlite:" + h.dir + "/q.db"}
			}
			h.must(0, "enqueue", "q", "x")

			c := h.child(args...)
			if got := c.request(`{"op":"claim","queue":"q"}`); !strings.Contains(got, `"attempt":1`) {
				t.Fatalf("claimed %s", got)
			}
			c.stdin.Close()
			if code := <-c.code; code != 0 {
				t.Errorf("after the end of stdin: exit code %d", code)
			}

			c = h.child(args...)
			if got := c.request(`{"op":"claim","queue":"q"}`); !strings.Contains(got, `"attempt":1`) {
				t.Errorf("after the end of stdin the job is %s, want it on its first attempt", got)
			}
			c.out.Close() // the parent is killed: both of its ends close
			c.stdin.Close()
			<-c.code
			if j := h.claim("q", "--wait", "1m"); j.Attempt != 2 {
				t.Errorf("after the parent's death the attempt is %d, want 2", j.Attempt)
			}
		})
	}
}

// TestStdioHangUpWithStdinOpen checks that only the reader of stdout goes away while the
// session waits for a job.
func TestStdioHangUpWithStdinOpen(t *testing.T) {
	for _, args := range [][]string{nil, {"--database", "sqlite:own.db"}} {
		h := newHost(t)
		if args == nil {
			h.serve()
		} else {
			args[1] = "sqlite:" + h.dir + "/own.db"
		}
		c := h.child(args...)
		c.request(`{"op":"ping"}`)
		if _, err := io.WriteString(c.stdin, `{"op":"claim","queue":"q","wait_ms":3600000}`+"\n"); err != nil {
			t.Fatal(err)
		}
		c.out.Close()
		<-c.code
	}
}

// TestStdioSignalWithoutReader checks that a signal ends stdio and frees its job although
// the parent reads nothing.
func TestStdioSignalWithoutReader(t *testing.T) {
	for _, sidecar := range []string{"the host's", "its own"} {
		t.Run(sidecar, func(t *testing.T) {
			h := newHost(t)
			var args []string
			if sidecar == "its own" {
				args = []string{"--database", "sqlite:" + h.dir + "/own.db"}
			} else {
				h.serve()
			}
			c := h.child(args...)
			c.request(`{"op":"ping"}`)
			var jobs []string // of many queues, so that few answers fill the pipe
			for n := range 200 {
				jobs = append(jobs, fmt.Sprintf(`{"queue":"q%d","payload":""}`, n))
			}
			c.request(`{"op":"enqueue","jobs":[` + strings.Join(jobs, ",") + `]}`)
			go func() { // more answers than a pipe holds, and no reader
				for {
					if _, err := io.WriteString(c.stdin, `{"op":"stats","id":"`+strings.Repeat("x", 50)+`"}`+"\n"); err != nil {
						return
					}
				}
			}()
			testwait.Until(t, "the pipe is full", func() bool { return isFull(t, c.stdout) })
			c.stop <- syscall.SIGTERM
			testwait.Receive(t, "the end of stdio", c.code)
		})
	}
}

// isFull reports whether a pipe is full.
func isFull(t *testing.T, w *os.File) bool {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(w.Fd()), Events: unix.POLLOUT}}
	if _, err := unix.Poll(fds, 0); err != nil && !errors.Is(err, unix.EINTR) {
		t.Fatal(err)
	}
	return fds[0].Revents&unix.POLLOUT == 0
}

// TestStdioSidecarEndsFirst checks that the relay fails, with the reason, if its sidecar closes the
// connection while stdin is open, unless the last request was `bye`.
func TestStdioSidecarEndsFirst(t *testing.T) {
	const msgpackBye = "\x00\x00\x00\x0d\x82\xa2id\x01\xa2op\xa3bye"
	for requests, want := range map[string]int{
		"":                     exitUnavailable,
		`{"op":"ping"}` + "\n": exitUnavailable,
		`{"op":"bye"}` + "\n{\"op\":\"ping\"}" + strings.Repeat(" ", 600) + "\n": exitUnavailable,
		`{"op":"enqueue","queue":"q","payload":"\"op\":\"bye\""}` + "\n":         exitUnavailable,
		`{"id":1, "op" : "bye"}` + "\n":                                          exitOK,
		msgpackBye:                                                               exitOK,
	} {
		h := newHost(t)
		if err := os.MkdirAll(filepath.Dir(h.socket()), 0o700); err != nil {
			t.Fatal(err)
		}
		listenUnix(t, h.socket(), func(conn net.Conn) { // it reads the requests and ends
			if _, err := io.ReadFull(conn, make([]byte, len(requests))); err != nil {
				t.Error(err)
			}
		})
		c := h.child("--socket", h.socket())
		if _, err := io.WriteString(c.stdin, requests); err != nil {
			t.Fatal(err)
		}
		code := testwait.Receive(t, "the end of stdio", c.code)
		if stderr := c.errOut.String(); code != want || strings.Contains(stderr, "the sidecar closed the connection") != (want != exitOK) {
			t.Errorf("after %.80q: exit code %d, stderr %q; want %d", requests, code, stderr, want)
		}
	}
}

// TestStdioWatchEnds checks that stop ends the watch of stdout, which waits without a limit.
func TestStdioWatchEnds(t *testing.T) {
	h := newHost(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	a := h.app(strings.NewReader(""), w, newText(), nil)
	a.stdout = w
	stop, err := a.onHangUp(func() { t.Error("stdout has its reader") })
	if err != nil {
		t.Fatal(err)
	}
	stop()
}
