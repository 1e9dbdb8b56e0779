package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// Limits of the admin listener. Its clients are not authenticated.
const (
	adminReadTimeout     = 5 * time.Second
	adminWriteTimeout    = 30 * time.Second // pprof extends it for a longer profile
	adminIdleTimeout     = time.Minute
	adminHeader          = 16 << 10
	adminConnections     = 64
	adminShutdownTimeout = time.Second // for running requests when it closes
)

// admin serves metrics and health over HTTP, if the config enables it.
type admin struct {
	bridge        atomic.Pointer[bridge.Bridge] // nil: the databases are still being opened
	registry      *prometheus.Registry
	makeSocketDir func(socket string) error // creates the directory of a socket
	log           *slog.Logger
	handler       http.Handler
	pprof         atomic.Bool

	mu     sync.Mutex
	config config.Admin
	server *adminServer // nil: nothing listens
}

// adminServer is one listener and its HTTP server.
type adminServer struct {
	net.Listener
	srv   *http.Server
	ended chan struct{}
}

func newAdmin(registry *prometheus.Registry, ready func(string) error, log *slog.Logger) *admin {
	a := &admin{registry: registry, makeSocketDir: ready, log: log}
	a.handler = a.routes()
	return a
}

// setBridge adds the bridge and its metrics.
func (a *admin) setBridge(b *bridge.Bridge) {
	a.registry.MustRegister(b.Metrics())
	a.bridge.Store(b)
}

// change applies c. If it fails nothing changes. undo restores the config before.
func (a *admin) change(c config.Admin) (undo func() error, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.config
	if err := a.move(c); err != nil {
		return nil, fmt.Errorf("admin.listen: %w", err)
	}
	a.config = c
	a.pprof.Store(bool(c.Pprof))
	return func() error {
		_, err := a.change(was)
		return err
	}, nil
}

// move opens the listener of c and closes the one before. a.mu is held.
func (a *admin) move(c config.Admin) error {
	old := a.server
	switch {
	case c.Listen == "":
		a.server = nil
	case old != nil && c.Listen == a.config.Listen:
		if s, ok := old.Listener.(*unixsocket.Listener); ok && (c.Mode != a.config.Mode || c.Group != a.config.Group) {
			return s.Adjust(c.BridgeSocket())
		}
		return nil
	default:
		next, err := a.open(c)
		if errors.Is(err, syscall.EADDRINUSE) && old != nil && !c.Listen.IsUnix() {
			return a.swap(old, c) // 127.0.0.1:9464 and 0.0.0.0:9464 conflict
		}
		if err != nil {
			return err
		}
		a.server = next
	}
	if old != nil {
		old.close()
	}
	return nil
}

// swap closes the old listener before it opens the new one. If that fails it opens the old
// one again. a.mu is held.
func (a *admin) swap(old *adminServer, c config.Admin) error {
	old.close()
	next, err := a.open(c)
	if err == nil {
		a.server = next
		return nil
	}
	a.server = nil
	again, err2 := a.open(a.config)
	if err2 == nil {
		a.server = again
	}
	return errors.Join(err, err2)
}

func (a *admin) open(c config.Admin) (*adminServer, error) {
	var ln net.Listener
	var err error
	if c.Listen.IsUnix() {
		if err := a.makeSocketDir(string(c.Listen)); err != nil {
			return nil, err
		}
		if ln, err = unixsocket.Listen(c.BridgeSocket()); err != nil {
			return nil, fmt.Errorf("socket %s: %w", c.Listen, err)
		}
	} else if ln, err = net.Listen("tcp", string(c.Listen)); errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: stop what listens there, or choose another port", err)
	} else if err != nil {
		return nil, err
	}
	d := &adminServer{Listener: ln, ended: make(chan struct{}), srv: &http.Server{
		Handler:           a.handler,
		ReadHeaderTimeout: adminReadTimeout,
		ReadTimeout:       adminReadTimeout,
		WriteTimeout:      adminWriteTimeout,
		IdleTimeout:       adminIdleTimeout,
		MaxHeaderBytes:    adminHeader,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelDebug), // errors of unknown clients
	}}
	go func() {
		defer close(d.ended)
		if err := d.srv.Serve(&limitedListener{Listener: ln, slots: make(chan struct{}, adminConnections)}); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("metrics and health are not served any more", "admin", c.Listen, "error", err)
		}
	}()
	return d, nil
}

// close stops the server. It waits adminShutdownTimeout for running requests.
func (d *adminServer) close() {
	ctx, cancel := context.WithTimeout(context.Background(), adminShutdownTimeout)
	defer cancel()
	if err := d.srv.Shutdown(ctx); err != nil {
		_ = d.srv.Close() // the time is over
	}
	<-d.ended
}

// close stops the listener.
func (a *admin) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.server != nil {
		a.server.close()
		a.server = nil
	}
}

// address returns where the listener is; empty: there is none.
func (a *admin) address() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.server == nil {
		return ""
	}
	if a.config.Listen.IsUnix() {
		return string(a.config.Listen)
	}
	return cmp.Or(a.server.Addr().String(), string(a.config.Listen)) // the system can have chosen the port
}

// limitedListener limits how many connections are open, and closes others at once.
type limitedListener struct {
	net.Listener
	slots chan struct{}
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.slots })}, nil
		default:
			_ = conn.Close() // nothing was read from it
		}
	}
}

type limitedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (g *limitedConn) Close() error {
	defer g.release()
	return g.Conn.Close()
}
