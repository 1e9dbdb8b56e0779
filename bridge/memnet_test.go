package bridge

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// memNet provides the Unix sockets of a sidecar in memory, so that it runs in a synctest bubble. There the clock
// stands still while any goroutine runs, and no test depends on the speed of the machine.
type memNet struct {
	mu   sync.Mutex
	at   map[string]*memListener
	peer *unixsocket.Peer // user of new connections
}

func newMemNet() *memNet {
	me := &unixsocket.Peer{UID: uint32(os.Getuid()), Groups: []uint32{uint32(os.Getgid())}, PID: int32(os.Getpid())}
	return &memNet{at: make(map[string]*memListener), peer: me}
}

// listen is system.listen. The listener counts as inherited, because it has no file.
func (n *memNet) listen(s unixsocket.Config) (*unixsocket.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ln := &memListener{net: n, path: s.Path, conns: make(chan *memConn), closed: make(chan struct{})}
	n.at[s.Path] = ln
	return unixsocket.Inherited(ln, s.Path, nil), nil
}

func (n *memNet) dial(t testing.TB, path string) *memConn {
	t.Helper()
	n.mu.Lock()
	ln := n.at[path]
	n.mu.Unlock()
	if ln == nil {
		t.Fatalf("no one listens on %s", path)
	}
	c, s := memPipe(n.peer)
	select {
	case ln.conns <- s:
	case <-ln.closed:
		_ = s.Close() // like a connection that is reset
	}
	return c
}

type memListener struct {
	net    *memNet
	path   string
	conns  chan *memConn
	once   sync.Once
	closed chan struct{}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		delete(l.net.at, l.path)
		l.net.mu.Unlock()
		close(l.closed)
	})
	return nil
}

func (l *memListener) Addr() net.Addr {
	return memAddr{&net.UnixAddr{Name: l.path, Net: "unix"}, l.net}
}

// memAddr is the address of a listener in memory.
type memAddr struct {
	*net.UnixAddr
	net *memNet
}

// memBuffer is how many unread bytes a connection accepts, as by default on Linux.
const memBuffer = 208 << 10

// memConn is one end of a connection in memory. It is a unixsocket.Conn.
type memConn struct {
	in, out *memPart
	who     *unixsocket.Peer // at the other end

	mu   sync.Mutex
	gone []func() // called when the other end closes
	dead bool     // the other end closed
	far  *memConn
}

// memPart is one direction.
type memPart struct {
	mu          sync.Mutex
	change      sync.Cond
	buf         []byte
	ended       bool // nothing more is written
	broken      bool // nothing more is read
	writes      int  // number of calls of Write
	read, write memDeadline
}

type memDeadline struct {
	timer *time.Timer
	over  bool
}

func memPipe(who *unixsocket.Peer) (client, server *memConn) {
	up, down := &memPart{}, &memPart{}
	up.change.L, down.change.L = &up.mu, &down.mu
	client, server = &memConn{in: down, out: up}, &memConn{in: up, out: down, who: who}
	client.far, server.far = server, client
	return client, server
}

func (p *memPart) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.change.Broadcast()
}

// until sets one of the part's deadlines.
func (p *memPart) until(d *memDeadline, at time.Time) {
	p.set(func() {
		if d.timer != nil {
			d.timer.Stop()
		}
		left := time.Until(at)
		if d.over = !at.IsZero() && left <= 0; at.IsZero() || d.over {
			return
		}
		var timer *time.Timer
		timer = time.AfterFunc(left, func() {
			p.set(func() { d.over = d.over || d.timer == timer })
		})
		d.timer = timer
	})
}

// written returns the number of writes so far.
func (p *memPart) written() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writes
}

func (c *memConn) Read(b []byte) (int, error) {
	p := c.in
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.broken:
			return 0, net.ErrClosed
		case p.read.over:
			return 0, os.ErrDeadlineExceeded
		case len(p.buf) > 0:
			n := copy(b, p.buf)
			if p.buf = p.buf[n:]; len(p.buf) == 0 {
				p.buf = nil
			}
			p.change.Broadcast()
			return n, nil
		case p.ended:
			return 0, io.EOF
		}
		p.change.Wait()
	}
}

func (c *memConn) Write(b []byte) (n int, err error) {
	p := c.out
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes++
	for {
		switch {
		case p.ended:
			return n, net.ErrClosed
		case p.broken:
			return n, syscall.EPIPE
		case p.write.over:
			return n, os.ErrDeadlineExceeded
		case len(b) == 0:
			return n, nil
		}
		if some := min(len(b), memBuffer-len(p.buf)); some > 0 {
			p.buf = append(p.buf, b[:some]...)
			b, n = b[some:], n+some
			p.change.Broadcast()
			continue
		}
		p.change.Wait()
	}
}

func (c *memConn) CloseWrite() error {
	c.out.set(func() { c.out.ended = true })
	return nil
}

func (c *memConn) Close() error {
	c.in.set(func() { c.in.broken, c.in.buf = true, nil })
	c.far.mu.Lock() // before it reads the end: then it checks whether this was a hang-up
	callbacks := c.far.gone
	c.far.gone, c.far.dead = nil, true
	c.far.mu.Unlock()
	c.out.set(func() { c.out.ended = true })
	for _, gone := range callbacks {
		gone()
	}
	for _, at := range []func(time.Time) error{c.SetReadDeadline, c.SetWriteDeadline} {
		_ = at(time.Time{}) // stops the timer; never fails
	}
	return nil
}

func (c *memConn) SetReadDeadline(at time.Time) error {
	c.in.until(&c.in.read, at)
	return nil
}

func (c *memConn) SetWriteDeadline(at time.Time) error {
	c.out.until(&c.out.write, at)
	return nil
}

func (c *memConn) SetDeadline(at time.Time) error {
	_ = c.SetReadDeadline(at)
	return c.SetWriteDeadline(at)
}

func (c *memConn) LocalAddr() net.Addr  { return &net.UnixAddr{Net: "unix"} }
func (c *memConn) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func (c *memConn) Peer() (*unixsocket.Peer, error) { return c.who, nil }

func (c *memConn) OnHangUp(gone func()) (forget func(), err error) {
	c.mu.Lock()
	if !c.dead {
		c.gone = append(c.gone, gone)
	}
	dead := c.dead
	c.mu.Unlock()
	if dead {
		gone()
	}
	return func() {
		c.mu.Lock()
		c.gone = nil
		c.mu.Unlock()
	}, nil
}

func (c *memConn) HungUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

// TestMemConn checks that the connections in memory behave as the other tests require.
func TestMemConn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := memPipe(nil)
		if err := client.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := client.Read(make([]byte, 1)); !os.IsTimeout(err) || time.Since(began) != time.Second {
			t.Errorf("a read with a deadline in a second: %v after %v", err, time.Since(began))
		}
		if _, err := client.Write([]byte("last")); err != nil {
			t.Fatal(err)
		}
		if err := client.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(server); string(got) != "last" || err != nil || server.HungUp() {
			t.Errorf("after the end of input: %q, %v, hung up: %v", got, err, server.HungUp())
		}
		calls := 0
		forget, err := server.OnHangUp(func() { calls++ })
		if err != nil {
			t.Fatal(err)
		}
		defer forget()
		_ = client.Close()
		if _, err := server.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) || calls != 1 || !server.HungUp() {
			t.Errorf("after the hang-up: a write gives %v, the callback ran %d times", err, calls)
		}
	})
}
