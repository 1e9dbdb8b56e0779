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
func (m *memNet) listen(s unixsocket.Config) (*unixsocket.Listener, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ln := &memListener{net: m, path: s.Path, conns: make(chan *memConn), closed: make(chan struct{})}
	m.at[s.Path] = ln
	return unixsocket.Inherited(ln, s.Path, nil), nil
}

func (m *memNet) dial(t testing.TB, path string) *memConn {
	t.Helper()
	m.mu.Lock()
	ln := m.at[path]
	m.mu.Unlock()
	if ln == nil {
		t.Fatalf("no one listens on %s", path)
	}
	c, s := memPipe(m.peer)
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

func (m *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

func (m *memListener) Close() error {
	m.once.Do(func() {
		m.net.mu.Lock()
		delete(m.net.at, m.path)
		m.net.mu.Unlock()
		close(m.closed)
	})
	return nil
}

func (m *memListener) Addr() net.Addr {
	return memAddr{&net.UnixAddr{Name: m.path, Net: "unix"}, m.net}
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

func (m *memPart) set(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	m.change.Broadcast()
}

// until sets one of the part's deadlines.
func (m *memPart) until(d *memDeadline, at time.Time) {
	m.set(func() {
		if d.timer != nil {
			d.timer.Stop()
		}
		left := time.Until(at)
		if d.over = !at.IsZero() && left <= 0; at.IsZero() || d.over {
			return
		}
		var timer *time.Timer
		timer = time.AfterFunc(left, func() {
			m.set(func() { d.over = d.over || d.timer == timer })
		})
		d.timer = timer
	})
}

// written returns the number of writes so far.
func (m *memPart) written() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

func (m *memConn) Read(b []byte) (int, error) {
	p := m.in
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

func (m *memConn) Write(b []byte) (n int, err error) {
	p := m.out
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

func (m *memConn) CloseWrite() error {
	m.out.set(func() { m.out.ended = true })
	return nil
}

func (m *memConn) Close() error {
	m.in.set(func() { m.in.broken, m.in.buf = true, nil })
	m.far.mu.Lock() // before it reads the end: then it checks whether this was a hang-up
	callbacks := m.far.gone
	m.far.gone, m.far.dead = nil, true
	m.far.mu.Unlock()
	m.out.set(func() { m.out.ended = true })
	for _, gone := range callbacks {
		gone()
	}
	for _, at := range []func(time.Time) error{m.SetReadDeadline, m.SetWriteDeadline} {
		_ = at(time.Time{}) // stops the timer; never fails
	}
	return nil
}

func (m *memConn) SetReadDeadline(at time.Time) error {
	m.in.until(&m.in.read, at)
	return nil
}

func (m *memConn) SetWriteDeadline(at time.Time) error {
	m.out.until(&m.out.write, at)
	return nil
}

func (m *memConn) SetDeadline(at time.Time) error {
	_ = m.SetReadDeadline(at)
	return m.SetWriteDeadline(at)
}

func (m *memConn) LocalAddr() net.Addr  { return &net.UnixAddr{Net: "unix"} }
func (m *memConn) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func (m *memConn) Peer() (*unixsocket.Peer, error) { return m.who, nil }

func (m *memConn) OnHangUp(gone func()) (forget func(), err error) {
	m.mu.Lock()
	if !m.dead {
		m.gone = append(m.gone, gone)
	}
	dead := m.dead
	m.mu.Unlock()
	if dead {
		gone()
	}
	return func() {
		m.mu.Lock()
		m.gone = nil
		m.mu.Unlock()
	}, nil
}

func (m *memConn) HungUp() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
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
