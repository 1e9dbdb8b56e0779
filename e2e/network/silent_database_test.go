package network

import (
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/admin"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// blackHole forwards bytes to a server. While it is locked, it accepts connections and forwards
// nothing, like a hanging host or a firewall that drops packets.
type blackHole struct {
	sync.RWMutex
	ln            net.Listener
	network, addr string
}

func newSwallower(t *testing.T, network, addr string) *blackHole {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &blackHole{ln: ln, network: network, addr: addr}
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
	t.Cleanup(func() { // after the sidecars have ended, which close the connections
		ln.Close()
		all.Wait()
	})
	return r
}

// moveTo directs new connections to another server.
func (r *blackHole) moveTo(network, addr string) {
	r.Lock()
	defer r.Unlock()
	r.network, r.addr = network, addr
}

// serve forwards a connection until it ends.
func (r *blackHole) serve(near net.Conn) {
	defer near.Close()
	r.RLock()
	network, addr := r.network, r.addr
	r.RUnlock()
	far, err := net.Dial(network, addr)
	if err != nil {
		return
	}
	defer far.Close()
	var both sync.WaitGroup
	both.Go(func() { r.pass(far, near) })
	both.Go(func() { r.pass(near, far) })
	both.Wait()
}

// pass ends both directions when the first one ends.
func (r *blackHole) pass(to, from net.Conn) {
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

// TestSilentDatabase checks a database that accepts connections and no longer answers.
func TestSilentDatabase(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		s, srv := kit.NewPostgresSite(t)
		r := newSwallower(t, "tcp", srv.Addr)
		s.URL = "postgres://postgres@" + r.ln.Addr().String() + "/e2e?sslmode=disable"
		checkSilence(t, s, r)
	})
	t.Run("mariadb", func(t *testing.T) {
		s, _, err := kit.NewMySQLSite(t, testserver.MariaDB1011)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		network, addr := "tcp", u.Host
		if socket := u.Query().Get("socket"); socket != "" {
			network, addr = "unix", socket
		}
		r := newSwallower(t, network, addr)
		u.Host, u.RawQuery = r.ln.Addr().String(), ""
		s.URL = u.String()
		checkSilence(t, s, r)
	})
}

// checkSilence checks that requests which need no database work as before, that other requests fail
// in time with `unavailable`, that the sidecar still stops, and that everything works again with
// the database.
func checkSilence(t *testing.T, s *kit.Site, r *blackHole) {
	s.SidecarTimeout = 20 * time.Second
	place := filepath.Join(s.Dir, "admin.sock")
	s.Extra = "admin: {listen: " + place + "}\n"
	sc := s.Start("a")
	adm := admin.At(t, place)
	c := sc.Dial()
	c.Enqueue("q", 2)
	adm.Scrape()
	r.Lock()
	silent := true
	defer func() {
		if silent {
			r.Unlock()
		}
	}()
	began := kit.Monotonic()
	testwait.Until(t, "it is not ready", func() bool { code, _ := adm.Get("/readyz"); return code == 503 })
	unready := kit.Since(began)
	for _, path := range []string{"/healthz", "/startupz"} {
		if code, body := adm.Get(path); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	began = kit.Monotonic()
	if e := adm.Scrape(); e.Series[`qsidecar_database_reachable{database="main"}`] != 0 {
		t.Error("the metrics say that the database can be reached")
	}
	scraped := kit.Since(began)
	c.Must(kit.Msg{"op": "ping"})
	began = kit.Monotonic()
	reply := c.Exchange(kit.Msg{"op": "enqueue", "queue": "q"})
	if reply.Error == nil || reply.Error.Code != "unavailable" && reply.Error.Code != "unknown_outcome" {
		t.Errorf("enqueue: %+v", reply)
	}
	refused := kit.Since(began)
	c.MustFail("unavailable", kit.Msg{"op": "claim", "queue": "q"})

	r.Unlock()
	silent = false
	testwait.Until(t, "it is ready again", func() bool { code, _ := adm.Get("/readyz"); return code == 200 })
	c.ClaimOne("q")
	c.Must(kit.Msg{"op": "bye"})

	r.Lock()
	silent = true
	testwait.Until(t, "it is not ready", func() bool { code, _ := adm.Get("/readyz"); return code == 503 })
	began = kit.Monotonic()
	sc.Signal(syscall.SIGTERM)
	code := sc.WaitExit()
	if log := sc.Log(); code != 1 || !strings.Contains(log, "the last heartbeat failed, so leases end with the sidecar timeout") {
		t.Errorf("exit code %d, output\n%s", code, log)
	}
	ended := kit.Since(began)
	kit.Figure(t, "of a silent database, with a sidecar_timeout of %v: not ready after %.1f s, metrics in %.1f s, an enqueue refused after %.1f s, an end after %.1f s",
		s.SidecarTimeout, unready.Seconds(), scraped.Seconds(), refused.Seconds(), ended.Seconds())
}
