package main

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
	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// Bounds of the admin listener: who asks is not known, and must not be able to harm.
const (
	adminReadTimeout  = 5 * time.Second
	adminWriteTimeout = 30 * time.Second // pprof gives itself more where a profile is to be longer
	adminIdleTimeout  = time.Minute
	adminHeader       = 16 << 10
	adminConnections  = 64
	adminLeave        = time.Second // for answers under way when it closes
)

// admin serves metrics and health over HTTP, where a config wants it.
type admin struct {
	bridge   atomic.Pointer[bridge.Bridge] // nil: the databases are being opened
	registry *prometheus.Registry
	ready    func(socket string) error // makes the place of a socket
	log      *slog.Logger
	handler  http.Handler
	pprof    atomic.Bool

	mu     sync.Mutex
	config adminConfig
	door   *door // nil: nothing is listened on
}

// door is one place that is listened on.
type door struct {
	net.Listener
	srv   *http.Server
	ended chan struct{}
}

func newAdmin(registry *prometheus.Registry, ready func(string) error, log *slog.Logger) *admin {
	a := &admin{registry: registry, ready: ready, log: log}
	a.handler = a.routes()
	return a
}

// begin shows a Bridge that was made.
func (a *admin) begin(b *bridge.Bridge) {
	a.registry.MustRegister(b.Metrics())
	a.bridge.Store(b)
}

// change listens where c says, and nowhere else; with an error all is as it was. undo
// takes it back.
func (a *admin) change(c adminConfig) (undo func() error, err error) {
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

// move opens the place of c and closes the one before. a.mu is held.
func (a *admin) move(c adminConfig) error {
	old := a.door
	switch {
	case c.Listen == "":
		a.door = nil
	case old != nil && c.Listen == a.config.Listen:
		if s, ok := old.Listener.(*unixsocket.Listener); ok && (c.Mode != a.config.Mode || c.Group != a.config.Group) {
			return s.Adjust(c.socket())
		}
		return nil
	default:
		next, err := a.open(c)
		if errors.Is(err, syscall.EADDRINUSE) && old != nil && !c.Listen.unix() {
			return a.swap(old, c) // as 127.0.0.1:9464 is in the way of 0.0.0.0:9464
		}
		if err != nil {
			return err
		}
		a.door = next
	}
	if old != nil {
		old.close()
	}
	return nil
}

// swap closes the old place before it opens the other one, and the old one again where
// that fails. a.mu is held.
func (a *admin) swap(old *door, c adminConfig) error {
	old.close()
	next, err := a.open(c)
	if err == nil {
		a.door = next
		return nil
	}
	a.door = nil
	again, err2 := a.open(a.config)
	if err2 == nil {
		a.door = again
	}
	return errors.Join(err, err2)
}

func (a *admin) open(c adminConfig) (*door, error) {
	var ln net.Listener
	var err error
	if c.Listen.unix() {
		if err := a.ready(string(c.Listen)); err != nil {
			return nil, err
		}
		if ln, err = unixsocket.Listen(c.socket()); err != nil {
			return nil, fmt.Errorf("socket %s: %w", c.Listen, err)
		}
	} else if ln, err = net.Listen("tcp", string(c.Listen)); errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: stop what listens there, or choose another port", err)
	} else if err != nil {
		return nil, err
	}
	d := &door{Listener: ln, ended: make(chan struct{}), srv: &http.Server{
		Handler:           a.handler,
		ReadHeaderTimeout: adminReadTimeout,
		ReadTimeout:       adminReadTimeout,
		WriteTimeout:      adminWriteTimeout,
		IdleTimeout:       adminIdleTimeout,
		MaxHeaderBytes:    adminHeader,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelDebug), // whatever strangers do wrong
	}}
	go func() {
		defer close(d.ended)
		if err := d.srv.Serve(&crowded{Listener: ln, room: make(chan struct{}, adminConnections)}); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("metrics and health are not served any more", "admin", c.Listen, "error", err)
		}
	}()
	return d, nil
}

// close ends the place, and after a moment whoever is still being answered.
func (d *door) close() {
	ctx, cancel := context.WithTimeout(context.Background(), adminLeave)
	defer cancel()
	if err := d.srv.Shutdown(ctx); err != nil {
		_ = d.srv.Close() // they had their time
	}
	<-d.ended
}

// close ends it all.
func (a *admin) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.door != nil {
		a.door.close()
		a.door = nil
	}
}

// address is where it is served; empty: nowhere.
func (a *admin) address() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.door == nil {
		return ""
	}
	if a.config.Listen.unix() {
		return string(a.config.Listen)
	}
	return cmp.Or(a.door.Addr().String(), string(a.config.Listen)) // the port, where the system chose it
}

// crowded is a listener whose connections have an upper bound; more are closed.
type crowded struct {
	net.Listener
	room chan struct{}
}

// Accept implements net.Listener.
func (l *crowded) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.room <- struct{}{}:
			return &guest{Conn: conn, leave: sync.OnceFunc(func() { <-l.room })}, nil
		default:
			_ = conn.Close() // nothing was read from it
		}
	}
}

type guest struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (g *guest) Close() error {
	defer g.leave()
	return g.Conn.Close()
}
