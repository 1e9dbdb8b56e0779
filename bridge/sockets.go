package bridge

import (
	"errors"
	"fmt"
	"maps"
	"net"
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

// listenNew adjusts the sockets that stay and listens on the new ones. It does all of this or none.
func (b *Bridge) listenNew(r *running, old *config, sockets []Socket) (added map[string]*unixsocket.Listener, err error) {
	added = make(map[string]*unixsocket.Listener)
	var undo []func() error
	defer func() {
		if err == nil {
			return
		}
		for _, f := range undo {
			err = errors.Join(err, f())
		}
		err = errors.Join(err, closeAll(added))
		added = nil
	}()
	for _, s := range sockets {
		ln := r.listeners[s.Path]
		if ln == nil {
			if err = errors.Join(isServed(r.listeners, s.Path), isServed(added, s.Path)); err == nil {
				ln, err = b.system.listen(s.file(b.log))
			}
			if err != nil {
				return added, fmt.Errorf("socket %s: %w", s.Path, err)
			}
			added[s.Path] = ln
			continue
		}
		was := old.socket(s.Path)
		if was.Mode == s.Mode && was.Group == s.Group || ln.IsInherited() {
			continue
		}
		undo = append(undo, func() error { return ln.Adjust(was.file(b.log)) })
		if err = ln.Adjust(s.file(b.log)); err != nil {
			return added, fmt.Errorf("socket %s: %w", s.Path, err)
		}
	}
	return added, nil
}

// dropSockets closes the sockets that the config does not have, and their connections. b.reload is held.
func (b *Bridge) dropSockets(r *running, c *config) {
	for path, ln := range r.listeners {
		if c.socket(path).Path != "" {
			continue
		}
		delete(r.listeners, path)
		if err := ln.Close(); err != nil {
			b.log.Error("can't remove a socket", "event", "socket_removal_failed", "socket", path, "error", err)
		}
		b.mu.Lock()
		for s := range b.sessions {
			if s.Socket == path {
				s.Close()
			}
		}
		b.mu.Unlock()
	}
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
