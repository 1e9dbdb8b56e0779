package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/qsidecar/qsidecar/bridge"
	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/daemon"
)

func (a *app) stdioCommand() *cobra.Command {
	var in config.Input
	cmd := &cobra.Command{
		Use:   "stdio",
		Short: "Speak the socket's protocol on stdin and stdout",
		Long: `Speak the socket's protocol on stdin and stdout, for a program that starts a child
instead of connecting to a socket.

With --config or --database it is a sidecar of its own for this session. Otherwise it
connects to the sidecar of this host. If none answers, it is a sidecar of its own with the
config and the database that serve uses (see serve --help).

At the end of stdin it answers the pending requests, then gives back the session's jobs.
If stdout has lost its reader too, that is a hang-up: the session's jobs are ready again
at once, and count as failed attempts.

Exit codes: 0 the session is over, 1 it failed, 2 wrong arguments or config, 5 the sidecar ended
first or can't be reached, 130 interrupted.`,
		Example: `  echo '{"op":"enqueue","queue":"mail","payload":"17"}' | qsidecar stdio`,
		Args:    argCount(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if in.File == "" && in.Database == "" {
				conn, err := a.dialRaw(cmd.Context())
				if err != nil {
					return err
				}
				if conn != nil {
					return a.relay(cmd.Context(), conn)
				}
			}
			return a.ownSession(cmd.Context(), a.configInput(in))
		},
	}
	inputFlags(cmd, &in)
	return cmd
}

// dialRaw connects to the host's sidecar. It returns nil if there is none.
func (a *app) dialRaw(ctx context.Context) (*net.UnixConn, error) {
	if err := a.checkSocket(); err != nil {
		return nil, err
	}
	var d net.Dialer
	var failed unreachableError
	for _, path := range a.sockets() {
		conn, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			return conn.(*net.UnixConn), nil
		}
		err = &qsidecar.DialError{Socket: path, Err: err}
		if !notListening(err) {
			return nil, err
		}
		failed = append(failed, err)
	}
	if !failed.isNone() {
		return nil, failed.withCode()
	}
	return nil, nil
}

// ownSession runs a sidecar without a socket.
func (a *app) ownSession(ctx context.Context, in config.Input) error {
	load := func() (config.Config, error) { return ownConfig(in) }
	c, err := load()
	if err != nil {
		return err
	}
	return a.runDaemon(ctx, daemon.Options{Input: in, Load: load}, c, func(ctx context.Context, p *daemon.Daemon) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		stop, err := a.onHangUp(func() { cancel(bridge.ErrHangUp) })
		if err != nil {
			return err
		}
		defer stop()
		return p.ServeStream(ctx, &hangUpReader{a.in, a.readerGone}, a.stdout)
	})
}

// ownConfig returns the config without sockets and without the admin listener.
func ownConfig(in config.Input) (config.Config, error) {
	c, err := in.Load()
	c.Listen = nil
	c.Admin = config.Admin{}
	if in.LogLevel == "" && in.File == "" {
		c.Log.Level = "warn" // the parent uses stderr for its own messages
	}
	return c, err
}

// hangUpReader is stdin. If stdout has no reader at its end, Read returns bridge.ErrHangUp,
// because a killed process closes its files one by one.
type hangUpReader struct {
	io.Reader
	readerGone func(ms int) bool
}

// Read implements io.Reader.
func (h *hangUpReader) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if errors.Is(err, io.EOF) && h.readerGone(closingMS) {
		err = bridge.ErrHangUp
	}
	return n, err
}

// closingMS is how many milliseconds a killed process can take between closing stdin and
// stdout.
const closingMS = 10

// relay copies bytes in both directions. A half-close stays a half-close, and a hang-up
// stays a hang-up.
func (a *app) relay(parent context.Context, conn *net.UnixConn) error {
	ctx, _, stop := a.interruptible(parent)
	defer stop()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	unwatch, err := a.onHangUp(func() { conn.Close() })
	if err != nil {
		return err
	}
	defer unwatch()
	requests := &sessionEnd{to: conn}
	go func() {
		// A blocked read of stdin ends with the process.
		if _, err := io.Copy(requests, a.in); err != nil {
			return // the other direction reports the error
		}
		requests.over.Store(true)
		if a.readerGone(closingMS) {
			conn.Close()
			return
		}
		_ = conn.CloseWrite() // fails if the sidecar closed first
	}()
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(a.out, conn)
		copied <- err
	}()
	select {
	case err = <-copied:
	case <-ctx.Done(): // the copy can block in a write; it ends with the process
		err = net.ErrClosed
	}
	conn.Close()
	switch {
	case errors.Is(err, net.ErrClosed): // closed here after a signal or a hang-up
		return cmp.Or(context.Cause(ctx), error(&codeError{code: exitFailure}))
	case err == nil && !requests.over.Load(), errors.Is(err, syscall.ECONNRESET):
		return &codeError{exitUnavailable, errors.New("the sidecar closed the connection before stdin ended: it was stopped or killed, or rejected a frame; see its log")}
	}
	return err
}

// sessionEnd forwards requests, and records whether they end the session.
type sessionEnd struct {
	to   io.Writer
	over atomic.Bool // the last request is `bye`, or stdin has ended
	tail []byte      // the end of what was forwarded
}

// The operation of a `bye` in JSON and in msgpack.
var (
	byeJSON    = regexp.MustCompile(`"op"\s*:\s*"bye"`)
	byeMsgpack = []byte("\xa2op\xa3bye")
)

// byeLimit is the largest size of a `bye` in bytes that is recognized.
const byeLimit = 512

// Write implements io.Writer.
func (s *sessionEnd) Write(p []byte) (int, error) {
	s.tail = append(s.tail, p[max(0, len(p)-byeLimit):]...)
	s.tail = append(s.tail[:0], s.tail[max(0, len(s.tail)-byeLimit):]...)
	s.over.Store(byeJSON.Match(s.tail) || bytes.Contains(s.tail, byeMsgpack)) // before the sidecar can answer it
	return s.to.Write(p)
}

// onHangUp calls f once if stdout loses its reader: a killed parent differs from one that
// only closed stdin. stop ends the watch.
func (a *app) onHangUp(f func()) (stop func(), err error) {
	out, ok := a.stdout.(*os.File)
	if !ok {
		return func() {}, nil
	}
	watch, wake, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("watching stdout: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { _ = watch.Close() }() // nothing is written to it
		if hungUp(out, watch, -1) {
			f()
		}
	}()
	return func() {
		_ = wake.Close() // wakes the watch
		<-ended
	}, nil
}

// readerGone waits up to ms milliseconds until stdout has no reader. It returns false at
// once if stdout isn't a file.
func (a *app) readerGone(ms int) bool {
	out, ok := a.stdout.(*os.File)
	return ok && hungUp(out, nil, ms)
}

// hungUp waits up to ms milliseconds (-1: without limit) until out has no reader, or until
// the other end of until is closed. until can be nil. A closed out has no reader.
func hungUp(out, until *os.File, ms int) bool {
	raw, err := out.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}} // no events: only errors and hang-ups
		if until != nil {
			fds = append(fds, unix.PollFd{Fd: int32(until.Fd())})
		}
		for {
			_, err := unix.Poll(fds, ms)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			gone = err == nil && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
			return
		}
	})
	return gone || err != nil
}
