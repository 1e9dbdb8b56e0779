package postgres

import (
	"encoding/binary"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// wire is a proxy between a Store and its server. It can be cut so that only the
// Store's side notices, as when a cable is pulled: the server keeps its sessions.
type wire struct {
	dir      string
	swallow  atomic.Int64 // wire keeps back one of the next answers of at least this length and disconnects its client
	listener net.Listener
	mu       sync.Mutex
	open     []net.Conn
	gone     sync.WaitGroup

	// fuse counts down with each request. The request that makes it 0 ends its session.
	fuse  int
	when  moment
	ended int // how many sessions were ended
	end   func(pid uint32)

	translate atomic.Bool // see inRussian
}

// arm ends the session of the n-th request from now on. 0 ends none.
func (w *wire) arm(n int, when moment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fuse, w.when = n, when
}

// burns reports whether, and when, the session of a request ends.
func (w *wire) burns() (when moment, ends bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fuse == 0 {
		return 0, false
	}
	w.fuse--
	return w.when, w.fuse == 0
}

func (w *wire) endSession(pid uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended++
	w.end(pid)
}

// moment is when a session ends, relative to a request.
type moment int

const (
	beforeRequest moment = iota // the server never gets it
	withRequest                 // after a part of the request
	afterRequest                // the server executes it, and its answer is lost
	moments
)

func newWire(t *testing.T, url string) (w *wire, through string) {
	t.Helper()
	c, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	w = &wire{dir: t.TempDir()}
	if w.listener, err = net.Listen("unix", filepath.Join(w.dir, ".s.PGSQL.5432")); err != nil {
		t.Fatal(err)
	}
	server := filepath.Join(c.Host, fmt.Sprintf(".s.PGSQL.%d", c.Port))
	w.gone.Go(func() { w.accept(server) })
	t.Cleanup(w.close)
	return w, fmt.Sprintf("host=%s port=5432 user=%s dbname=%s", w.dir, c.User, c.Database)
}

func (w *wire) accept(server string) {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		behind, err := net.Dial("unix", server)
		if err != nil {
			client.Close()
			continue
		}
		w.mu.Lock()
		w.open = append(w.open, client, behind)
		w.mu.Unlock()
		var pid atomic.Uint32
		w.gone.Go(func() { w.requests(client, behind, &pid) })
		if w.translate.Load() {
			pid.Store(1)
			w.gone.Go(func() { w.inRussian(client, behind) })
			continue
		}
		w.gone.Go(func() { w.answers(client, behind, &pid) })
	}
}

func (w *wire) requests(client, behind net.Conn, pid *atomic.Uint32) {
	b := make([]byte, 64<<10)
	for {
		n, err := client.Read(b)
		if err != nil {
			return
		}
		when, ends := moment(0), false
		if pid.Load() != 0 {
			when, ends = w.burns()
		}
		switch {
		case ends && when == beforeRequest:
			w.endSession(pid.Load())
		case ends && when == afterRequest:
			w.swallow.Store(1)
		}
		if _, err := behind.Write(b[:n]); err != nil {
			client.Close()
			return
		}
		if ends && when == withRequest {
			w.endSession(pid.Load())
		}
	}
}

func (w *wire) answers(client, behind net.Conn, pid *atomic.Uint32) {
	defer client.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := behind.Read(b)
		if err != nil {
			return
		}
		if pid.Load() == 0 {
			pid.Store(pidIn(b[:n]))
		}
		if least := w.swallow.Load(); least > 0 && int64(n) >= least && w.swallow.CompareAndSwap(least, 0) {
			if w.end != nil {
				w.endSession(pid.Load())
			}
			return // the connection to the server stays open
		}
		if _, err := client.Write(b[:n]); err != nil {
			return
		}
	}
}

// pidIn returns the server's process id, if b contains the message that names it.
func pidIn(b []byte) uint32 {
	for len(b) >= 5 {
		n := 1 + int(binary.BigEndian.Uint32(b[1:]))
		if b[0] == 'K' && len(b) >= 9 {
			return binary.BigEndian.Uint32(b[5:])
		}
		if n > len(b) {
			break
		}
		b = b[n:]
	}
	return 0
}

func (w *wire) close() {
	w.listener.Close()
	w.mu.Lock()
	for _, c := range w.open {
		c.Close()
	}
	w.mu.Unlock()
	w.gone.Wait()
}

// TestACutCable cuts the wire after the server ran statements, and after
// it committed them. The sessions remain, with the locks of the first one.
func TestACutCable(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		w, through := newWire(t, filled(t, p))
		s := open(t, Options{URL: through, idle: time.Hour}) // so the server does not end the cut sessions itself
		beat(t, s, 1)
		fill(t, s, 3)
		jobs := take(t, s, 1, 3, 1)
		for i, cut := range []func(){
			func() { w.swallow.Store(60) }, // the answer to the statements; the answer to COMMIT is shorter
			func() { // the answer to COMMIT
				hook := func(*pgx.Conn, bool) {
					s.fault.Store(nil)
					w.swallow.Store(1)
				}
				s.fault.Store(&hook)
			},
			func() {},
		} {
			cut()
			r, err := s.Commit(testwait.Context(t), backends.CommitContent{Writes: []backends.Write{
				backends.Ack{Leases: []backends.Lease{{Job: jobs[i].ID, Token: jobs[i].Token}}}}})
			if err != nil || len(r.Writes[0].Lost) != 0 {
				t.Errorf("ack %d: %+v, %v", i, r, err)
			}
		}
		if n := w.swallow.Load(); n != 0 {
			t.Errorf("nothing was cut (%d)", n)
		}
	})
}
