package postgres

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// wire stands between a Store and its server, and can be cut so that only the
// Store's side notices, as when a cable is pulled: the server keeps its sessions.
type wire struct {
	dir      string
	swallow  atomic.Int64 // of the next answers that are this long at least, one is kept back, and its client is cut off
	listener net.Listener
	mu       sync.Mutex
	open     []net.Conn
	gone     sync.WaitGroup
}

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
		w.gone.Go(func() { _, _ = io.Copy(behind, client) })
		w.gone.Go(func() { w.answers(client, behind) })
	}
}

func (w *wire) answers(client, behind net.Conn) {
	defer client.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := behind.Read(b)
		if err != nil {
			return
		}
		if least := w.swallow.Load(); least > 0 && int64(n) >= least && w.swallow.CompareAndSwap(least, 0) {
			return // behind stays open
		}
		if _, err := client.Write(b[:n]); err != nil {
			return
		}
	}
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

// TestACutCable cuts the wire after the server carried statements out, and after
// it committed them. Its sessions stay, with the locks of the first.
func TestACutCable(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		w, through := newWire(t, p.Database(t))
		s := open(t, Options{URL: through})
		beat(t, s, 1)
		fill(t, s, 3)
		jobs := take(t, s, 1, 3, 1)
		for i, cut := range []func(){
			func() { w.swallow.Store(60) }, // the answer to the statements; that to COMMIT is shorter
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
			began := time.Now()
			r, err := s.Commit(t.Context(), backends.Batch{Writes: []backends.Write{
				backends.Ack{Leases: []backends.Lease{{Job: jobs[i].ID, Token: jobs[i].Token}}}}})
			if err != nil || len(r.Writes[0].Lost) != 0 {
				t.Errorf("ack %d: %+v, %v", i, r, err)
			}
			if took := time.Since(began); took > idleInTransaction/2 {
				t.Errorf("ack %d waited %v for the locks of the session that was cut off", i, took)
			}
		}
		if n := w.swallow.Load(); n != 0 {
			t.Errorf("nothing was cut (%d)", n)
		}
	})
}
