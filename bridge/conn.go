package bridge

import "net"

// conn is a connection by a socket: one that can be ended in one direction, and whose peer
// is known.
type conn interface {
	net.Conn
	CloseWrite() error
	// peer is the process that connected.
	peer() (*peer, error)
	// watch calls gone once when the peer hangs up, also while nobody reads. forget must
	// be called before Close.
	watch(gone func()) (forget func(), err error)
	// hungUp reports whether the peer is gone altogether, rather than only finished with
	// writing.
	hungUp() bool
}

// newConn is what a listener accepted.
func newConn(c net.Conn, watcher *hangups) conn {
	if c, ok := c.(*net.UnixConn); ok {
		return unixConn{c, watcher}
	}
	return c.(conn) // a test's
}

type unixConn struct {
	*net.UnixConn
	watcher *hangups
}

func (c unixConn) peer() (*peer, error) { return peerOf(c.UnixConn) }

func (c unixConn) watch(gone func()) (forget func(), err error) {
	return c.watcher.watch(c.UnixConn, gone)
}

func (c unixConn) hungUp() bool { return hungUp(c.UnixConn) }
