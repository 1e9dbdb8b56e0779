package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Config describes a socket to listen on.
type Config struct {
	Path  string
	Mode  fs.FileMode
	Group string       // owns the socket: a name or a number. Empty: the group of the process
	Log   *slog.Logger // of a lost file; nil: not logged
}

// backlog is how many clients can wait to be accepted. The kernel lowers it to its own limit.
const backlog = 1<<16 - 1

// Listener is a socket that accepts connections only when its file is complete: with its owner and mode, under a lock
// that one process holds. If its file is lost, the Listener creates it again (see check). NewConn wraps its connections.
type Listener struct {
	Path      string
	inherited bool
	log       *slog.Logger
	stop      chan struct{} // ends the guard

	change     sync.Mutex  // one change of the files at a time. It guards what follows
	config     Config      // the file's mode and group
	folder     fs.FileMode // of the socket's folder
	lock       *os.File    // nil: inherited
	notBound   string      // why the lost file can't be created again, as it was logged
	isClosed   bool
	wasMissing bool // the loss was logged

	mu    sync.Mutex // never held for long. It guards what follows
	bound net.Listener
	self  fs.FileInfo // of the socket's file. nil: unknown
	lost  error       // why clients can't connect by the path
}

// Inherited wraps a listener that another process created and handed over, such as a service manager. A path that this
// process does not see is not watched: the other process can have another root (PrivateTmp).
func Inherited(ln net.Listener, path string, log *slog.Logger) *Listener {
	self, _ := os.Lstat(path)
	l := &Listener{Path: path, inherited: true, bound: ln, self: self}
	l.start(log)
	return l
}

// Listen binds a socket, sets its owner and mode, and then lets clients connect. It replaces a stale socket and
// refuses anything else at the path.
func Listen(s Config) (*Listener, error) {
	if err := fits(s.Path); err != nil {
		return nil, err
	}
	dir := filepath.Dir(s.Path)
	if err := checkFolder(dir); err != nil {
		return nil, err
	}
	folder, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	lock, err := lockSocket(s.Path)
	if err != nil {
		return nil, err
	}
	bound, self, err := signAndBind(lock, s)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	l := &Listener{Path: s.Path, config: s, folder: folder.Mode(), lock: lock, bound: bound, self: self}
	l.start(s.Log)
	return l, nil
}

// signAndBind signs the lock before there is a socket, so that what a killed process left is known as its own.
func signAndBind(lock *os.File, s Config) (net.Listener, fs.FileInfo, error) {
	if err := sign(lock); err != nil {
		return nil, nil, err
	}
	bound, self, err := bind(s)
	if err != nil {
		return nil, nil, errors.Join(err, unsign(lock, s.Path))
	}
	return bound, self, nil
}

// bind creates the socket by its own path, which the kernel then lists (/proc/net/unix). Programs that clean folders
// keep the files of that list. No client can connect before the call of listen(2), when owner and mode are set.
func bind(s Config) (ln net.Listener, self fs.FileInfo, err error) {
	if err := os.Remove(s.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("the stale socket: %w", err)
	}
	syscall.ForkLock.RLock()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), s.Path)
	defer func() { _ = f.Close() }()           // the listener has a copy
	_ = unix.Fchmod(fd, uint32(s.Mode.Perm())) // Linux: the file never has more rights. Others refuse
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: s.Path})
	if err != nil {
		return nil, nil, os.NewSyscallError("bind", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(s.Path))
		}
	}()
	if s.Group != "" {
		if err = chgrp(s.Path, s.Group); err != nil {
			return nil, nil, err
		}
	}
	if err = os.Chmod(s.Path, s.Mode.Perm()); err != nil {
		return nil, nil, err
	}
	if self, err = os.Lstat(s.Path); err != nil {
		return nil, nil, err
	}
	if err = os.NewSyscallError("listen", unix.Listen(fd, backlog)); err != nil {
		return nil, nil, err
	}
	ln, err = net.FileListener(f)
	return ln, self, err
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

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.current().Addr() }

func (l *Listener) current() net.Listener {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bound
}

// Accept implements net.Listener. It goes on when the socket is bound again.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		ln := l.current()
		conn, err := ln.Accept()
		if !errors.Is(err, net.ErrClosed) || ln == l.current() {
			return conn, err
		}
	}
}

// IsAt reports whether the path is a name of the listener's own file.
func (l *Listener) IsAt(path string) bool {
	l.mu.Lock()
	self := l.self
	l.mu.Unlock()
	info, err := os.Lstat(path)
	return err == nil && self != nil && os.SameFile(info, self)
}

// Close stops listening, removes the socket if the file is still its own, and releases the lock. It does nothing
// the second time. The lock file stays: if it were removed, two processes could hold "the" lock.
func (l *Listener) Close() error {
	l.change.Lock()
	defer l.change.Unlock()
	if l.isClosed {
		return nil
	}
	l.isClosed = true
	close(l.stop)
	err := l.current().Close()
	l.setLost(nil)
	if l.inherited {
		return err
	}
	if l.IsAt(l.Path) {
		err = errors.Join(err, os.Remove(l.Path))
	}
	return errors.Join(err, unsign(l.lock, l.Path), l.lock.Close())
}

// Adjust changes the mode and group of the socket's file.
func (l *Listener) Adjust(s Config) error {
	l.change.Lock()
	defer l.change.Unlock()
	if err := l.missing(); err != nil {
		return fmt.Errorf("its mode and group can't change while its file is lost: %w", err)
	}
	var err error
	if s.Group != "" {
		err = chgrp(l.Path, s.Group)
	} else {
		err = os.Chown(l.Path, -1, os.Getgid())
	}
	if err == nil {
		err = os.Chmod(l.Path, s.Mode&fs.ModePerm)
	}
	if err == nil {
		l.config.Mode, l.config.Group = s.Mode, s.Group
	}
	return err
}

// IsInherited reports whether another process created the socket. Its file, owner and mode are not changed, it
// needs no lock, and it goes on to take connections when this process ends.
func (l *Listener) IsInherited() bool { return l.inherited }
