package qsidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// Sockets returns the paths at which the client looks for a sidecar's socket if Options.Socket is
// empty, in order. If QSIDECAR_SOCKET is set, it is the only one. Otherwise they are
// $XDG_RUNTIME_DIR/qsidecar/qsidecar.sock, for users other than root qsidecar/qsidecar.sock in
// $XDG_STATE_HOME or ~/.local/state, if that directory exists, and /run/qsidecar/qsidecar.sock. Root
// skips the first if another user owns one of its two directories.
func Sockets() []string {
	if s := os.Getenv("QSIDECAR_SOCKET"); s != "" {
		return []string{s}
	}
	var all []string
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && !(os.Geteuid() == 0 && (isForeign(dir) || isForeign(filepath.Join(dir, "qsidecar")))) {
		all = append(all, filepath.Join(dir, "qsidecar", "qsidecar.sock"))
	}
	if dir := stateDir(); dir != "" && os.Geteuid() != 0 {
		if fi, err := os.Stat(dir); err == nil && fi.IsDir() {
			all = append(all, filepath.Join(dir, "qsidecar.sock"))
		}
	}
	return append(all, "/run/qsidecar/qsidecar.sock")
}

// isForeign reports whether another user than root owns dir. That user could serve a socket of its
// own there.
func isForeign(dir string) bool {
	fi, err := os.Stat(dir)
	return err == nil && fi.Sys().(*syscall.Stat_t).Uid != 0
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

// socketURL matches a path that is written as a URL, or as a host and a port. No socket has such a name, and the system would only report that.
var socketURL = regexp.MustCompile(`^(?:unix:(?://)?(.*)|[A-Za-z][A-Za-z0-9+.-]*://.*|[^/]+:[0-9]+$)`)

// dialSocket returns a function that dials the socket at path. The connection is close-on-exec, as
// all of Go's.
func dialSocket(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		if url := socketURL.FindStringSubmatch(path); url != nil {
			return nil, fmt.Errorf("it is not a path: write %s", cmp.Or(url[1], "/run/qsidecar/qsidecar.sock"))
		}
		if strings.HasPrefix(path, "~") {
			return nil, errors.New("~ isn't replaced here: write the whole path")
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", path)
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = otherFile(path, err)
		}
		return conn, err
	}
}

// otherFile describes the error of a path that is a file or a folder. The system reports it as a socket on which nothing listens.
func otherFile(path string, err error) error {
	switch info, statErr := os.Stat(path); {
	case statErr != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("it is a folder: name the socket in it: %w", err)
	case info.Mode().IsRegular():
		return fmt.Errorf("it is a file, and not a socket: %w", err)
	}
	return err
}

// dialFirst connects to the first path on which a sidecar listens, and stores it in opts.Socket. A
// client that reconnects must not reach another sidecar.
func (c *Client) dialFirst(ctx context.Context) (*connection, error) {
	var tried triedError
	for _, path := range Sockets() {
		c.opts.Socket, c.opts.Dial = path, dialSocket(path)
		l, err := c.connect(ctx)
		if err == nil {
			return l, nil
		}
		failed := &DialError{Socket: path, Err: err}
		if !notListening(err) {
			return nil, failed // a sidecar listens, so do not try the next path
		}
		tried = append(tried, failed)
	}
	if len(tried) == 1 {
		return nil, tried[0]
	}
	return nil, &DialError{Socket: tried[0].Socket, Err: tried}
}

// triedError has the error of each path that was tried.
type triedError []*DialError

// Error implements error.
func (e triedError) Error() string {
	var all []string
	for _, d := range e {
		all = append(all, fmt.Sprintf("%s (%v)", d.Socket, d.Err))
	}
	return strings.Join(all, " or ")
}

// Unwrap returns the errors.
func (e triedError) Unwrap() (all []error) {
	for _, d := range e {
		all = append(all, d.Err)
	}
	return all
}

// notListening reports whether a dial failed because no sidecar that this process can reach listens
// on the socket. A client then tries the next of Sockets. It does not if a sidecar is only busy.
func notListening(err error) bool {
	return slices.ContainsFunc([]error{
		fs.ErrNotExist, syscall.ENOTDIR, syscall.ELOOP, syscall.ECONNREFUSED, fs.ErrPermission,
		syscall.EPROTOTYPE, syscall.ENOTSOCK, // of another program
		syscall.EINVAL, syscall.ENAMETOOLONG, // too long for a socket
	}, func(reason error) bool { return errors.Is(err, reason) })
}
