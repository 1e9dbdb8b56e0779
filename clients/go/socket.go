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

// Sockets lists where a sidecar's socket is looked for when Options.Socket is
// empty, in this order: what QSIDECAR_SOCKET names, and nowhere else where that is
// set; or $XDG_RUNTIME_DIR/qsidecar/qsidecar.sock, then /run/qsidecar/qsidecar.sock.
func Sockets() []string {
	if s := os.Getenv("QSIDECAR_SOCKET"); s != "" {
		return []string{s}
	}
	all := []string{"/run/qsidecar/qsidecar.sock"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		all = append([]string{filepath.Join(dir, "qsidecar", "qsidecar.sock")}, all...)
	}
	return all
}

// dialSocket gives a way to dial the socket at path, close-on-exec as all of Go's.
func dialSocket(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}

// dialFirst connects to the first place where somebody listens, and settles
// opts.Socket: a client that reconnects must not end up at another sidecar.
func (c *Client) dialFirst(ctx context.Context) (*link, error) {
	var first error
	for _, path := range Sockets() {
		c.opts.Socket, c.opts.Dial = path, dialSocket(path)
		l, err := c.connect(ctx)
		if err == nil {
			return l, nil
		}
		err = &DialError{Socket: path, Err: err}
		if !absent(err) {
			return nil, err // somebody is there: the next place would be a surprise
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// absent reports whether a dial failed because nobody listens there.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOTDIR)
}
