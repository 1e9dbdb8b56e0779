package qsidecar

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// Sockets returns the paths at which the client looks for a sidecar's socket if Options.Socket is
// empty, in order. If QSIDECAR_SOCKET is set, it is the only one. Otherwise they are
// $XDG_RUNTIME_DIR/qsidecar/qsidecar.sock, for users other than root qsidecar/qsidecar.sock in
// $XDG_STATE_HOME or ~/.local/state, if that directory exists, and /run/qsidecar/qsidecar.sock.
func Sockets() []string {
	if s := os.Getenv("QSIDECAR_SOCKET"); s != "" {
		return []string{s}
	}
	var all []string
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		all = append(all, filepath.Join(dir, "qsidecar", "qsidecar.sock"))
	}
	if dir := stateDir(); dir != "" && os.Geteuid() != 0 {
		if fi, err := os.Stat(dir); err == nil && fi.IsDir() {
			all = append(all, filepath.Join(dir, "qsidecar.sock"))
		}
	}
	return append(all, "/run/qsidecar/qsidecar.sock")
}

// stateDir returns the user's state directory of qsidecar, or "" if the environment doesn't set one.
func stateDir() string {
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "qsidecar")
	}
	if home := os.Getenv("HOME"); home != "" {
		return filepath.Join(home, ".local", "state", "qsidecar")
	}
	return ""
}

// dialSocket returns a function that dials the socket at path. The connection is close-on-exec, as
// all of Go's.
func dialSocket(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}

// dialFirst connects to the first path on which a sidecar listens, and stores it in opts.Socket. A
// client that reconnects must not reach another sidecar.
func (c *Client) dialFirst(ctx context.Context) (*connection, error) {
	var first error
	for _, path := range Sockets() {
		c.opts.Socket, c.opts.Dial = path, dialSocket(path)
		l, err := c.connect(ctx)
		if err == nil {
			return l, nil
		}
		err = &DialError{Socket: path, Err: err}
		if !notListening(err) {
			return nil, err // a sidecar listens, so do not try the next path
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// notListening reports whether a dial failed because no process listens on the socket.
func notListening(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOTDIR)
}
