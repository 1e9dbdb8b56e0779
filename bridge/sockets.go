package bridge

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// listenAll listens on all of the sockets or on none. Inherited ones listen already.
func (b *Bridge) listenAll(o *Options) (map[string]*unixsocket.Listener, error) {
	lns := make(map[string]*unixsocket.Listener, len(o.Sockets))
	for _, s := range o.Sockets {
		if ln := o.inherited(s.Path); ln != nil {
			lns[s.Path] = unixsocket.Inherited(ln, s.Path, b.log)
			continue
		}
		err := isServed(lns, s.Path)
		var ln *unixsocket.Listener
		if err == nil {
			ln, err = b.system.listen(s.file(b.log))
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("socket %s: %w", s.Path, err), closeAll(lns))
		}
		lns[s.Path] = ln
	}
	return lns, nil
}

// isServed returns an error if the path is another name of one of the sockets. Without this check, listening would
// fail as if another sidecar used the path.
func isServed(lns map[string]*unixsocket.Listener, path string) error {
	for _, ln := range lns {
		if ln.IsAt(path) {
			return fmt.Errorf("this sidecar serves it already, as %s: a socket has one path, and a reload cannot give it another one", ln.Path)
		}
	}
	return nil
}

func closeAll(lns map[string]*unixsocket.Listener) (err error) {
	for _, ln := range lns {
		err = errors.Join(err, ln.Close())
	}
	return err
}

// inherited returns the inherited listener at the path, or nil.
func (o *Options) inherited(path string) *net.UnixListener {
	i := slices.IndexFunc(o.Inherited, func(ln *net.UnixListener) bool { return ln.Addr().String() == path })
	if i < 0 {
		return nil
	}
	return o.Inherited[i]
}

// checkInherited requires that every inherited listener has its own entry in Sockets, so that it is served under the
// rules of that entry. Without service it would accept connections that get no reply, and without an entry it would
// give every client all rights.
func (o *Options) checkInherited(bad func(format string, args ...any)) {
	for _, ln := range o.Inherited {
		path := ln.Addr().String() // the path that it was bound to, whatever file is there now
		if !slices.ContainsFunc(o.Sockets, func(s Socket) bool { return s.Path == path }) {
			bad("listen: the service manager hands over the socket %s, which is not in the list: add it with just this path, "+
				"or take it out of the socket unit, and restart that and the service", path)
		}
	}
}

// accept serves connections until the listener is closed. If file descriptors run out, it waits, longer each time,
// instead of spinning or ending.
func (b *Bridge) accept(ln *unixsocket.Listener, watcher *unixsocket.HangUpWatcher) error {
	const most = time.Second
	delay := 5 * time.Millisecond
	for {
		conn, err := ln.Accept()
		switch {
		case err == nil:
			delay = 5 * time.Millisecond
			go b.serveConn(unixsocket.NewConn(conn, watcher), ln.Path)
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOBUFS),
			errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.ECONNABORTED):
			b.log.Warn("can't accept a connection", "event", "accept_failed", "socket", ln.Path, "error", err, "after", delay)
			time.Sleep(delay)
			delay = min(2*delay, most)
		default:
			return fmt.Errorf("socket %s: accept: %w", ln.Path, err)
		}
	}
}

// setListening publishes the listeners for Health, which must not wait for a reload. b.reload is held.
func (b *Bridge) setListening(r *running) {
	all := maps.Clone(r.listeners)
	b.listening.Store(&all)
}

// socketError returns why clients can't connect to the socket by its path, or nil.
func (b *Bridge) socketError(path string) error {
	if all := b.listening.Load(); all != nil {
		if ln := (*all)[path]; ln != nil {
			return ln.Lost()
		}
	}
	return nil
}
