package top

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
)

// Options configure Run.
type Options struct {
	Socket   string        // of a sidecar that listens
	Worker   string        // the name of the connection, for people
	Interval time.Duration // between two refreshes
	In       io.Reader     // the terminal
	Out      io.Writer
}

// Run shows the view until the user quits or ctx ends. It returns ctx's cause in the latter case.
func Run(ctx context.Context, o Options) error {
	m := newModel(o.Interval)
	p := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(o.In), tea.WithOutput(o.Out), tea.WithoutSignalHandler())
	w := &watcher{socket: o.Socket, report: func(err error) { p.Send(linkMsg{err}) }}
	c, err := qsidecar.Dial(ctx, qsidecar.Options{Socket: o.Socket, Worker: o.Worker, Retry: -1, Dial: w.dial})
	if err != nil {
		return err
	}
	defer c.Close()
	m.client = c
	w.started.Store(true)
	_, err = p.Run()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("showing the view: %w", err)
}

// watcher dials the socket of a client, and reports when the connection breaks and when it is back.
type watcher struct {
	socket  string
	report  func(error) // nil: there is a connection
	started atomic.Bool // report can be called; the first connection isn't reported
}

func (w *watcher) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", w.socket)
	w.tell(err)
	if err != nil {
		return nil, err
	}
	return &watchedConn{Conn: conn, w: w}, nil
}

func (w *watcher) tell(err error) {
	if w.started.Load() {
		w.report(err)
	}
}

// watchedConn reports the error that ends its reads.
type watchedConn struct {
	net.Conn
	w *watcher
}

func (w *watchedConn) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err != nil {
		w.w.tell(err)
	}
	return n, err
}
