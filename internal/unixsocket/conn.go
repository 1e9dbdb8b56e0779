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

func (u unixConn) Peer() (*Peer, error) { return peerOf(u.UnixConn) }

func (u unixConn) OnHangUp(gone func()) (forget func(), err error) {
	return u.watcher.watch(u.UnixConn, gone)
}

func (u unixConn) HungUp() bool { return hungUp(u.UnixConn) }
