package cli

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	client "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// stdioConn is a child process `qsidecar stdio` as a connection.
type stdioConn struct {
	net.Conn // nil: the methods that a client uses are below
	in       io.WriteCloser
	out      io.ReadCloser
	cmd      *exec.Cmd
	once     sync.Once
	code     chan int // capacity 1: the exit code
}

func (s *stdioConn) Read(p []byte) (int, error) { return s.out.Read(p) }

func (s *stdioConn) Write(p []byte) (int, error) { return s.in.Write(p) }

// Close closes stdin, as a program does with a child that it no longer needs.
func (s *stdioConn) Close() error {
	err := net.ErrClosed
	s.once.Do(func() {
		err = s.in.Close()
		go func() {
			_, e := io.Copy(io.Discard, s.out) // its last replies
			err := errors.Join(e, s.cmd.Wait())
			if err != nil && s.cmd.ProcessState.Success() {
				panic(err) // an error of the pipe, which a test can't handle
			}
			s.code <- s.cmd.ProcessState.ExitCode()
		}()
	})
	return err
}

// stdio starts a child in a clean environment.
func stdio(s *kit.Site, args ...string) (*stdioConn, error) {
	cmd := exec.Command(kit.Binary, append([]string{"stdio"}, args...)...)
	cmd.Env = []string{"HOME=" + s.Dir, "PATH=" + os.Getenv("PATH"), "XDG_STATE_HOME=" + s.Dir, "XDG_RUNTIME_DIR=" + s.Dir, "QSIDECAR_CONFIG=none",
		"GOCOVERDIR=" + os.Getenv("GOCOVERDIR")}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &stdioConn{in: in, out: out, cmd: cmd, code: make(chan int, 1)}, cmd.Start()
}

// TestStdioMsgpack uses the Go client over msgpack with a child, which has its own pool or forwards
// to the host's sidecar. A close returns its jobs without using up an attempt.
func TestStdioMsgpack(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	a := s.Start("a")
	for _, how := range []struct {
		name string
		args []string
	}{
		{"through the host's sidecar", []string{"--socket", a.Socket}},
		{"a pool of its own", []string{"--database", s.URL}},
		{"a config of its own", []string{"--config", a.ConfigFile}},
		{"the default database", nil}, // no sidecar at the default path
	} {
		t.Run(how.name, func(t *testing.T) {
			ctx := testwait.Context(t)
			every := make([]byte, 256)
			for i := range every {
				every[i] = byte(i)
			}
			dial := func() (*client.Client, *stdioConn) {
				var conn *stdioConn
				c, err := client.Dial(ctx, client.Options{Dial: func(context.Context) (net.Conn, error) {
					var err error
					conn, err = stdio(s, how.args...)
					return conn, err
				}})
				if err != nil {
					t.Fatal(err)
				}
				return c, conn
			}
			ended := func(c *client.Client, conn *stdioConn) {
				t.Helper()
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if code := testwait.Receive(t, "the child ends after its stdin", conn.code); code != 0 {
					t.Errorf("the child exited with %d", code)
				}
			}
			c, conn := dial()
			if _, err := c.Enqueue(ctx, protocol.NewJob{Queue: "q", Payload: every}); err != nil {
				t.Fatal(err)
			}
			jobs, err := c.Claim(ctx, client.Claim{Queues: []string{"q"}, Wait: testwait.Limit / 2})
			if err != nil || len(jobs) != 1 || string(jobs[0].Payload) != string(every) {
				t.Fatalf("claimed %+v, %v", jobs, err)
			}
			ended(c, conn)

			c, conn = dial()
			jobs, err = c.Claim(ctx, client.Claim{Queues: []string{"q"}, Wait: testwait.Limit / 2})
			if err != nil || len(jobs) != 1 || jobs[0].Attempt != 1 {
				t.Fatalf("after the end of stdin: %+v, %v; want the job on its first attempt", jobs, err)
			}
			if err := c.Ack(ctx, jobs[0].Lease); err != nil {
				t.Error(err)
			}
			ended(c, conn)
		})
	}
	if left := s.JobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}
