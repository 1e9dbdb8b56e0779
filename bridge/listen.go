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
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxSocketPath is what fits sun_path with its closing NUL on Linux; other
// systems have a little less, and say so themselves.
const maxSocketPath = 107

// listener is a socket that appeared complete: with its owner and mode, at one
// instant, under a lock that one process holds.
type listener struct {
	*net.UnixListener
	path string
	lock *os.File
	self fs.FileInfo // of the socket file, to remove no other
}

// listenAll listens on all of the sockets or on none.
func listenAll(sockets []Socket) (map[string]*listener, error) {
	lns := make(map[string]*listener, len(sockets))
	for _, s := range sockets {
		ln, err := listen(s)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("socket %s: %w", s.Path, err), closeAll(lns))
		}
		lns[s.Path] = ln
	}
	return lns, nil
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
	if len(s.Path) > maxSocketPath {
		return nil, fmt.Errorf("the path has %d bytes, a Unix socket's may have %d: choose a shorter one", len(s.Path), maxSocketPath)
	}
	lock, err := lockSocket(s.Path)
	if err != nil {
		return nil, err
	}
	ln, err := bind(s)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	self, err := os.Lstat(s.Path)
	if err != nil {
		return nil, errors.Join(err, ln.Close(), lock.Close())
	}
	return &listener{UnixListener: ln, path: s.Path, lock: lock, self: self}, nil
}

// lockSocket takes the lock file beside the socket, which lives as long as this
// process, and makes sure that nobody else serves the path.
func lockSocket(path string) (*os.File, error) {
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		owner := lockOwner(lock)
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("another sidecar%s serves it: stop that one, or choose another --socket", owner)
		}
		return nil, errors.Join(err, lock.Close())
	}
	if err := errors.Join(lock.Truncate(0), writeAt(lock, strconv.Itoa(os.Getpid())+"\n"), checkStale(path)); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

func lockOwner(lock *os.File) string {
	var buf [20]byte
	n, _ := lock.ReadAt(buf[:], 0) // only for the message; without it there is no pid in it
	if pid := strings.TrimSpace(string(buf[:n])); pid != "" {
		return " (pid " + pid + ")"
	}
	return ""
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// checkStale allows to replace nothing but a socket that nobody answers on.
func checkStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return errors.New("a symbolic link is in the way: remove it, or choose another --socket")
	case info.Mode()&fs.ModeSocket == 0:
		return errors.New("a file that is no socket is in the way: remove it, or choose another --socket")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close() // it was only asked whether somebody answers
		return errors.New("another program answers on it: stop that one, or choose another --socket")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("cannot tell whether the socket there is stale: %w", err)
	}
	return nil
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

// close stops listening, removes the socket if it is still this one, and gives
// the lock back. The lock file stays: removing it would let two processes hold
// "the" lock.
func (l *listener) close() error {
	err := l.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	if now, statErr := os.Lstat(l.path); statErr == nil && os.SameFile(now, l.self) {
		err = errors.Join(err, os.Remove(l.path))
	}
	return errors.Join(err, l.lock.Close())
}

// accept serves connections until the listener is closed. Without file
// descriptors left it waits, longer each time, instead of spinning or ending.
func (b *Bridge) accept(ln *listener, watcher *hangups) error {
	const most = time.Second
	delay := 5 * time.Millisecond
	for {
		conn, err := ln.AcceptUnix()
		switch {
		case err == nil:
			delay = 5 * time.Millisecond
			go b.serveConn(conn, ln.path, watcher)
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
