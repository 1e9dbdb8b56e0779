package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/internal/adminapi"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/internal/web"
)

// Limits of the admin listener. Clients of metrics and health are not authenticated.
const (
	adminReadTimeout     = 5 * time.Second
	adminWriteTimeout    = 30 * time.Second // pprof extends it for a longer profile
	adminIdleTimeout     = time.Minute
	adminHeader          = 16 << 10
	adminConnections     = 64
	adminRequestWait     = 100 * time.Millisecond // for a request, while other clients wait for a connection
	adminShutdownTimeout = time.Second            // for running requests when it closes
)

// admin serves metrics, health, the API and the page over HTTP, if the config enables it.
type admin struct {
	bridge        atomic.Pointer[bridge.Bridge] // nil: the databases are still being opened
	registry      *prometheus.Registry
	makeSocketDir func(socket string) error // creates the directory of a socket
	log           *slog.Logger
	api           *adminapi.Server
	page          *web.Page
	handler       http.Handler
	pprof         atomic.Bool

	mu     sync.Mutex
	config config.Admin
	rules  adminapi.Rules
	server *adminServer // nil: nothing listens
}

// adminServer is one listener and its HTTP server.
type adminServer struct {
	net.Listener
	srv   *http.Server
	ended chan struct{}
}

func newAdmin(registry *prometheus.Registry, ready func(string) error, version string, log *slog.Logger) *admin {
	a := &admin{registry: registry, makeSocketDir: ready, log: log}
	a.api = adminapi.New(adminapi.Options{Serve: a.serveStream, Log: log, Page: func(api *adminapi.Server) http.Handler {
		a.page = web.New(web.Options{Do: api.Do, Access: api.Access, User: api.User, Changes: func() []web.Change { return pageChanges(api.Changes()) }, StatusOf: adminapi.StatusOf, HidePayloads: api.PayloadsHidden, Stopping: api.Stopping, Version: version})
		return a.page
	}})
	a.handler = a.routes()
	return a
}

// setBridge adds the bridge, with its metrics and those of the traces.
func (a *admin) setBridge(b *bridge.Bridge, traces prometheus.Collector) {
	a.registry.MustRegister(b.Metrics(), traces)
	a.bridge.Store(b)
}

// change applies the section of c. If it fails nothing changes. undo restores the section before.
func (a *admin) change(c *config.Config) (undo func() error, err error) {
	rules, err := adminRules(c)
	if err != nil {
		return nil, err
	}
	return a.set(c.Admin, rules)
}

func (a *admin) set(c config.Admin, rules adminapi.Rules) (undo func() error, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was, wasRules := a.config, a.rules
	if c.Listen != was.Listen {
		a.api.Configure(adminapi.Rules{Off: true}) // no listener is served by the rules of another one
	}
	if err := a.move(c); err != nil {
		a.api.Configure(wasRules)
		return nil, fmt.Errorf("admin.listen: %w", err)
	}
	a.config, a.rules = c, rules
	a.api.Configure(rules)
	a.pprof.Store(bool(c.Pprof))
	return func() error {
		_, err := a.set(was, wasRules)
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
			return s.Adjust(c.BridgeSocket(a.log))
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
		if ln, err = unixsocket.Listen(c.BridgeSocket(a.log)); err != nil {
			return nil, fmt.Errorf("socket %s: %w", c.Listen, err)
		}
	} else if ln, err = net.Listen("tcp", string(c.Listen)); errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: stop what listens there, or choose another port", err)
	} else if err != nil {
		return nil, err
	}
	d := &adminServer{Listener: ln, ended: make(chan struct{}), srv: &http.Server{
		Handler: markBusy(a.handler),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, limitedConnKey{}, c)
		},
		ReadHeaderTimeout: adminReadTimeout,
		ReadTimeout:       adminReadTimeout,
		WriteTimeout:      adminWriteTimeout,
		IdleTimeout:       adminIdleTimeout,
		MaxHeaderBytes:    adminHeader,
		ErrorLog:          log.New(adminErrors{a.log}, "", 0),
	}}
	d.srv.RegisterOnShutdown(a.api.EndStreams)
	go func() {
		defer close(d.ended)
		if err := d.srv.Serve(newLimitedListener(ln)); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("admin listener failed", "event", "admin_listener_failed", "admin", c.Listen, "error", err)
		}
	}()
	return d, nil
}

// adminErrors receives the log of the HTTP server: errors of unknown clients.
type adminErrors struct{ log *slog.Logger }

// Write implements io.Writer.
func (a adminErrors) Write(p []byte) (int, error) {
	a.log.Debug("admin connection failed", "event", "admin_connection_failed", "error", strings.TrimSpace(string(p)))
	return len(p), nil
}

// close stops the server. It waits adminShutdownTimeout for running requests.
func (a *adminServer) close() {
	ctx, cancel := context.WithTimeout(context.Background(), adminShutdownTimeout)
	defer cancel()
	if err := a.srv.Shutdown(ctx); err != nil {
		_ = a.srv.Close() // the time is over
	}
	<-a.ended
}

// close stops the listener and the API.
func (a *admin) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.server != nil {
		a.server.close()
		a.server = nil
	}
	a.page.Close()
	a.api.Close()
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

// pageURL returns where a proxy serves the page; empty: nowhere.
func (a *admin) pageURL() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.server == nil || a.config.BaseURL == "" {
		return ""
	}
	return string(a.config.BaseURL) + "/"
}

// limitedListener limits how many connections are open. While all of them are in use, new ones wait. To let one in, it
// closes the connection that has been without a complete request for longest, once that time exceeds adminRequestWait.
// Connections that never sent one come first.
// So clients that send half of a request don't keep others from metrics and health.
type limitedListener struct {
	net.Listener
	freed  chan struct{} // capacity 1: a connection was closed, or waits for a request now
	closed chan struct{} // closed by Close
	once   sync.Once

	mu   sync.Mutex
	open []*limitedConn // those that were without a request for longest come first
}

func newLimitedListener(ln net.Listener) *limitedListener {
	return &limitedListener{Listener: ln, freed: make(chan struct{}, 1), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	for {
		c, wait := l.admit(conn)
		if c != nil {
			return c, nil
		}
		select {
		case <-l.freed:
		case <-time.After(wait):
		case <-l.closed:
			_ = conn.Close() // nothing was read from it
			return nil, net.ErrClosed
		}
	}
}

// admit adds a connection, in place of another one if the limit is reached. If that is not possible yet, it returns
// nil, and after which time to try again.
func (l *limitedListener) admit(conn net.Conn) (c *limitedConn, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= adminConnections {
		i := slices.IndexFunc(l.open, func(c *limitedConn) bool { return !c.busy && !c.served })
		if i < 0 {
			i = slices.IndexFunc(l.open, func(c *limitedConn) bool { return !c.busy })
		}
		if i < 0 {
			return nil, adminReadTimeout // or until one of them is free
		}
		if wait = adminRequestWait - time.Since(l.open[i].since); wait > 0 {
			return nil, wait
		}
		_ = l.open[i].Conn.Close() // its client didn't send a request
		l.open = slices.Delete(l.open, i, i+1)
	}
	c = &limitedConn{Conn: conn, listener: l, since: time.Now()}
	l.open = append(l.open, c)
	return c, 0
}

// remove removes a connection that waits for a request or is closed, and reports whether it was still there.
func (l *limitedListener) remove(c *limitedConn) bool {
	i := slices.Index(l.open, c)
	if i < 0 {
		return false
	}
	l.open = slices.Delete(l.open, i, i+1)
	select {
	case l.freed <- struct{}{}:
	default:
	}
	return true
}

// Close implements net.Listener.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	listener *limitedListener
	busy     bool      // a request is being answered. listener.mu guards it
	served   bool      // a request was answered. listener.mu guards it
	since    time.Time // since when it is not busy. listener.mu guards it
}

// Close implements net.Conn.
func (l *limitedConn) Close() error {
	l.listener.mu.Lock()
	l.listener.remove(l)
	l.listener.mu.Unlock()
	return l.Conn.Close()
}

// RemoteAddr implements net.Conn.
func (l *limitedConn) RemoteAddr() net.Addr { return clientAddr(l.Conn) }

type limitedConnKey struct{}

// markBusy keeps a connection open while the handler answers its request.
func markBusy(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(limitedConnKey{}).(*limitedConn)
		if c == nil {
			next.ServeHTTP(w, r)
			return
		}
		c.listener.mu.Lock()
		c.busy = true
		c.listener.mu.Unlock()
		defer func() {
			c.listener.mu.Lock()
			defer c.listener.mu.Unlock()
			c.busy, c.served, c.since = false, true, time.Now()
			if c.listener.remove(c) {
				c.listener.open = append(c.listener.open, c)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
