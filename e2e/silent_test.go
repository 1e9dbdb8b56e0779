package e2e

import (
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// swallower passes bytes on to a server. While it is locked nothing arrives, in any
// connection, and new ones are taken: a host that hangs, a firewall that swallows.
type swallower struct {
	sync.RWMutex
	ln            net.Listener
	network, addr string
}

func newSwallower(t *testing.T, network, addr string) *swallower {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &swallower{ln: ln, network: network, addr: addr}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() { r.serve(conn) })
		}
	})
	t.Cleanup(func() { // after the sidecars' ends, which close the connections
		ln.Close()
		all.Wait()
	})
	return r
}

// serve passes a connection on to its end.
func (r *swallower) serve(near net.Conn) {
	defer near.Close()
	far, err := net.Dial(r.network, r.addr)
	if err != nil {
		return
	}
	defer far.Close()
	var both sync.WaitGroup
	both.Go(func() { r.pass(far, near) })
	both.Go(func() { r.pass(near, far) })
	both.Wait()
}

// pass ends both with the first of them.
func (r *swallower) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		r.RLock()
		_, err = to.Write(b[:n])
		r.RUnlock()
		if err != nil {
			return
		}
	}
}

// TestDatabaseFallsSilent: the database takes connections and answers nothing any more.
func TestDatabaseFallsSilent(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		s, srv := newPostgresSite(t)
		r := newSwallower(t, "tcp", srv.addr)
		s.url = "postgres://postgres@" + r.ln.Addr().String() + "/e2e?sslmode=disable"
		fallsSilent(t, s, r)
	})
	t.Run("mariadb", func(t *testing.T) {
		s, _, err := newMySQLSite(t, testserver.MariaDB1011)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(s.url)
		if err != nil {
			t.Fatal(err)
		}
		network, addr := "tcp", u.Host
		if socket := u.Query().Get("socket"); socket != "" {
			network, addr = "unix", socket
		}
		r := newSwallower(t, network, addr)
		u.Host, u.RawQuery = r.ln.Addr().String(), ""
		s.url = u.String()
		fallsSilent(t, s, r)
	})
}

// fallsSilent: all that does not need the database is answered as ever, what needs it is told
// in time that it is away, and it ends when it is told to; with the database it is all there again.
func fallsSilent(t *testing.T, s *site, r *swallower) {
	s.hostLease = 4 * time.Second
	place := filepath.Join(s.dir, "admin.sock")
	s.extra = "admin: {listen: " + place + "}\n"
	sc := s.started("a")
	adm := adminAt(t, place)
	c := sc.dial()
	c.enqueueN("q", 2)
	adm.scrape()
	r.Lock()
	silent := true
	defer func() {
		if silent {
			r.Unlock()
		}
	}()
	began := time.Now()
	eventually(t, patience, "it is not ready", func() bool { code, _ := adm.get("/readyz"); return code == 503 })
	unready := time.Since(began)
	for _, path := range []string{"/healthz", "/startupz"} {
		if code, body := adm.get(path); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	began = time.Now()
	if e := adm.scrape(); e.series[`qsidecar_database_reachable{database="main"}`] != 0 {
		t.Error("the metrics say that the database can be reached")
	}
	scraped := time.Since(began)
	c.must(msg{"op": "ping"})
	began = time.Now()
	reply := c.ask(msg{"op": "enqueue", "queue": "q"})
	if reply.Error == nil || reply.Error.Code != "unavailable" && reply.Error.Code != "unknown_outcome" {
		t.Errorf("enqueue: %+v", reply)
	}
	refused := time.Since(began)
	c.refused("unavailable", msg{"op": "claim", "queue": "q"})

	r.Unlock()
	silent = false
	eventually(t, patience, "it is ready again", func() bool { code, _ := adm.get("/readyz"); return code == 200 })
	c.claimOne("q")
	c.must(msg{"op": "bye"})

	r.Lock()
	silent = true
	eventually(t, patience, "it is not ready", func() bool { code, _ := adm.get("/readyz"); return code == 503 })
	began = time.Now()
	sc.signal(syscall.SIGTERM)
	code := sc.exit(time.Minute)
	if log := sc.readLog(); code != 1 || !strings.Contains(log, "the last beat failed, leases held here end with the host lease") {
		t.Errorf("exit code %d, it said\n%s", code, log)
	}
	ended := time.Since(began)
	if ended > 15*time.Second { // what a driver waits for by itself comes on top of what the sidecar does
		t.Errorf("it ended after %v", ended)
	}
	figure(t, "of a database that says nothing, with a host_lease of %v: not ready after %.1f s, metrics in %.1f s, an enqueue refused after %.1f s, an end after %.1f s",
		s.hostLease, unready.Seconds(), scraped.Seconds(), refused.Seconds(), ended.Seconds())
}
