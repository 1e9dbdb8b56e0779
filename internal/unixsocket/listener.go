package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
)

// Config describes a socket to listen on.
type Config struct {
	Path  string
	Mode  fs.FileMode
	Group string // owns the socket: a name or a number. Empty: the group of the process
}

// Listener is a socket that appeared complete: with its owner and mode, at one instant, under a lock that one
// process holds. NewConn wraps its connections.
type Listener struct {
	net.Listener // of a Unix socket
	Path         string
	lock         *os.File    // nil: see IsInherited
	self         fs.FileInfo // of the socket file, to remove no other
}

// Inherited wraps a listener that another process created and handed over, such as a service manager.
func Inherited(ln net.Listener, path string) *Listener { return &Listener{Listener: ln, Path: path} }

// Listen binds a socket in a private directory beside the path, sets its owner and mode there, and moves it to the
// path. It replaces a stale socket and refuses anything else at the path.
func Listen(s Config) (*Listener, error) {
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
	return &Listener{Listener: ln, Path: s.Path, lock: lock, self: self}, nil
}

// bind creates the socket. It reaches the temporary name through the directory's descriptor, so that this name
// need not fit sun_path.
func bind(s Config) (ln *net.UnixListener, err error) {
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

// IsAt reports whether the path is a name of the listener's own file.
func (l *Listener) IsAt(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && l.self != nil && os.SameFile(info, l.self)
}

// Close stops listening, removes the socket if the file is still its own, and releases the lock. It does nothing
// the second time. The lock file stays: if it were removed, two processes could hold "the" lock.
func (l *Listener) Close() error {
	err := l.Listener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	if l.IsInherited() {
		return err
	}
	if now, statErr := os.Lstat(l.Path); statErr == nil && os.SameFile(now, l.self) {
		err = errors.Join(err, os.Remove(l.Path))
	}
	return errors.Join(err, unsign(l.lock, l.Path), l.lock.Close())
}

// Adjust changes the mode and group of the socket's file.
func (l *Listener) Adjust(s Config) error {
	now, err := os.Lstat(l.Path)
	if err != nil {
		return err
	}
	if !os.SameFile(now, l.self) {
		return errors.New("another file replaced this sidecar's socket: remove it, and restart the sidecar")
	}
	if s.Group != "" {
		err = chgrp(l.Path, s.Group)
	} else {
		err = os.Chown(l.Path, -1, os.Getgid())
	}
	if err != nil {
		return err
	}
	return os.Chmod(l.Path, s.Mode&fs.ModePerm)
}

// IsInherited reports whether another process created the socket. Its file, owner and mode are not changed, it
// needs no lock, and it goes on to take connections when this process ends.
func (l *Listener) IsInherited() bool { return l.lock == nil }
