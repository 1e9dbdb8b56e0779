package unixsocket

import "net"

// Conn is a connection to a Listener.
type Conn interface {
	net.Conn
	CloseWrite() error
	// Peer is the process that connected.
	Peer() (*Peer, error)
	// OnHangUp calls gone once when the peer hangs up, also while no client reads. forget must
	// be called before Close.
	OnHangUp(gone func()) (forget func(), err error)
	// HungUp reports whether the peer is gone altogether, rather than only finished with
	// writing.
	HungUp() bool
}

// NewConn wraps a connection that a Listener accepted. A test can accept its own Conn.
func NewConn(c net.Conn, watcher *HangUpWatcher) Conn {
	if c, ok := c.(*net.UnixConn); ok {
		return unixConn{c, watcher}
	}
	return c.(Conn) // a test's
}

type unixConn struct {
	*net.UnixConn
	watcher *HangUpWatcher
}

func (c unixConn) Peer() (*Peer, error) { return peerOf(c.UnixConn) }

func (c unixConn) OnHangUp(gone func()) (forget func(), err error) {
	return c.watcher.watch(c.UnixConn, gone)
}

func (c unixConn) HungUp() bool { return hungUp(c.UnixConn) }
