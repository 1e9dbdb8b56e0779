package bridge

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// listener is a socket that appeared complete: with its owner and mode, at one
// instant, under a lock that one process holds.
type listener struct {
	net.Listener // of a Unix socket; its connections are told by newConn
	path         string
	lock         *os.File    // nil: see isInherited
	self         fs.FileInfo // of the socket file, to remove no other
}

// listenAll listens on all of the sockets or on none. Those that were handed over
// listen already.
func (b *Bridge) listenAll(o *Options) (map[string]*listener, error) {
	lns := make(map[string]*listener, len(o.Sockets))
	for _, s := range o.Sockets {
		if ln := o.inherited(s.Path); ln != nil {
			lns[s.Path] = &listener{Listener: ln, path: s.Path}
			continue
		}
		err := isServed(lns, s.Path)
		var ln *listener
		if err == nil {
			ln, err = b.system.listen(s)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("socket %s: %w", s.Path, err), closeAll(lns))
		}
		lns[s.Path] = ln
	}
	return lns, nil
}

// isServed says that a path is another name of one of the sockets. Without it another sidecar
// would be thought to be there.
func isServed(lns map[string]*listener, path string) error {
	there, err := os.Lstat(path)
	if err != nil {
		return nil // listen says what is wrong with it
	}
	for _, ln := range lns {
		if ln.self != nil && os.SameFile(there, ln.self) {
			return fmt.Errorf("this sidecar serves it already, as %s: a socket has one path, and a reload cannot give it another one", ln.path)
		}
	}
	return nil
}

func closeAll(lns map[string]*listener) (err error) {
	for _, ln := range lns {
		err = errors.Join(err, ln.close())
	}
	return err
}

// listen binds the socket in a private directory beside its place, sets owner
// and mode there, and moves it into place. A stale socket is replaced; anything
// else at the path is left alone.
func listen(s Socket) (*listener, error) {
	if err := fits(s.Path); err != nil {
		return nil, err
	}
	if err := checkFolder(filepath.Dir(s.Path)); err != nil {
		return nil, err
	}
	lock, err := lockSocket(s.Path)
	if err != nil {
		return nil, err
	}
	if err := sign(lock); err != nil { // before there is a socket: what a killed process left is known as its own
		return nil, errors.Join(err, lock.Close())
	}
	ln, err := bind(s)
	if err != nil {
		return nil, errors.Join(err, unsign(lock, s.Path), lock.Close())
	}
	self, err := os.Lstat(s.Path)
	if err != nil {
		return nil, errors.Join(err, ln.Close(), lock.Close())
	}
	return &listener{Listener: ln, path: s.Path, lock: lock, self: self}, nil
}

// bind makes the socket. Its temporary name is reached through the directory's
// descriptor, so that it does not have to fit sun_path too.
func bind(s Socket) (ln *net.UnixListener, err error) {
	private, err := os.MkdirTemp(filepath.Dir(s.Path), ".qsidecar-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(private)) }()
	tmp := filepath.Join(private, "s")
	short, done, err := shortPath(private)
	if err != nil {
		return nil, err
	}
	defer done()
	ln, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false)
	if s.Group != "" {
		err = chgrp(tmp, s.Group)
	}
	if err == nil {
		err = os.Chmod(tmp, s.Mode.Perm())
	}
	if err == nil {
		err = os.Rename(tmp, s.Path)
	}
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

func chgrp(path, group string) error {
	gid, err := strconv.Atoi(group)
	if err != nil {
		g, err := user.LookupGroup(group)
		if err != nil {
			return err
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return fmt.Errorf("group %s has no number: %w", group, err)
		}
	}
	return os.Chown(path, -1, gid)
}

// close stops listening, removes the socket if it is still this one and its own, and
// gives the lock back. The lock file stays: removing it would let two processes hold
// "the" lock.
func (l *listener) close() error {
	err := l.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	if l.isInherited() {
		return err
	}
	if now, statErr := os.Lstat(l.path); statErr == nil && os.SameFile(now, l.self) {
		err = errors.Join(err, os.Remove(l.path))
	}
	return errors.Join(err, unsign(l.lock, l.path), l.lock.Close())
}

// accept serves connections until the listener is closed. Without file
// descriptors left it waits, longer each time, instead of spinning or ending.
func (b *Bridge) accept(ln *listener, watcher *hangups) error {
	const most = time.Second
	delay := 5 * time.Millisecond
	for {
		conn, err := ln.Accept()
		switch {
		case err == nil:
			delay = 5 * time.Millisecond
			go b.serveConn(newConn(conn, watcher), ln.path)
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOBUFS),
			errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.ECONNABORTED):
			b.log.Warn("cannot accept a connection now, trying again", "socket", ln.path, "error", err, "after", delay)
			time.Sleep(delay)
			delay = min(2*delay, most)
		default:
			return fmt.Errorf("socket %s: accept: %w", ln.path, err)
		}
	}
}
