package unixsocket

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// guardEvery is how often a listener checks its file. It does not wait for events of the folder: in a busy folder such
// as /tmp there are thousands of those a second, and on some file systems there are none.
const guardEvery = time.Second

// start begins to guard the file, unless it is unknown.
func (l *Listener) start(log *slog.Logger) {
	l.log, l.stop = cmp.Or(log, slog.New(slog.DiscardHandler)), make(chan struct{})
	if l.self == nil {
		return
	}
	go func() {
		tick := time.NewTicker(guardEvery)
		defer tick.Stop()
		for {
			select {
			case <-l.stop:
				return
			case <-tick.C:
				l.check()
			}
		}
	}()
}

// Lost returns why clients can't connect by the path, or nil.
func (l *Listener) Lost() error {
	l.mu.Lock()
	lost := l.lost
	l.mu.Unlock()
	select {
	case <-l.stop:
		return nil
	default:
	}
	return cmp.Or(lost, l.missing())
}

func (l *Listener) setLost(why error) {
	l.mu.Lock()
	l.lost = why
	l.mu.Unlock()
}

// missing returns an error if the file at the path isn't the listener's own.
func (l *Listener) missing() error {
	l.mu.Lock()
	self := l.self
	l.mu.Unlock()
	if self == nil {
		return nil
	}
	now, err := os.Lstat(l.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("the socket's file was removed")
	case err != nil:
		return fmt.Errorf("the socket's file is out of reach: %w", err)
	case !os.SameFile(now, self):
		return errors.New("the socket's file was replaced by another one")
	}
	return nil
}

// check creates a lost file again. It leaves the path to any program that answers there, and tries again each time.
// Open connections go on.
func (l *Listener) check() {
	l.change.Lock()
	defer l.change.Unlock()
	if l.isClosed {
		return
	}
	why := l.missing()
	if why == nil {
		l.keepLock()
		l.found()
		return
	}
	if !l.wasMissing {
		l.wasMissing = true
		l.log.Warn("socket file lost", "event", "socket_lost", "socket", l.Path, "error", why)
	}
	err := l.bindAgain()
	if err == nil {
		l.found()
		return
	}
	l.setLost(fmt.Errorf("%w, and can't be created again: %w", why, err))
	if text := err.Error(); text != l.notBound {
		l.notBound = text
		l.log.Error("can't bind a lost socket again", "event", "socket_not_bound", "socket", l.Path, "error", err)
	}
}

// found ends a loss. l.change is held.
func (l *Listener) found() {
	l.setLost(nil)
	if l.wasMissing {
		l.log.Info("socket bound again", "event", "socket_bound_again", "socket", l.Path)
	}
	l.wasMissing, l.notBound = false, ""
}

// holdsLock reports whether the lock file is the locked one.
func (l *Listener) holdsLock() bool {
	own, err := l.lock.Stat()
	now, nowErr := os.Lstat(l.Path + ".lock")
	return err == nil && nowErr == nil && os.SameFile(own, now)
}

// keepLock takes the lock again if its file was removed or replaced. If it can't, the next check tries again: a second
// sidecar is refused also then, because this one answers on the socket. l.change is held.
func (l *Listener) keepLock() {
	if l.inherited || l.holdsLock() {
		return
	}
	lock, err := takeLock(l.Path)
	if err != nil {
		return
	}
	if sign(lock) != nil {
		_ = lock.Close() // nothing was written
		return
	}
	l.replaceLock(lock)
}

func (l *Listener) replaceLock(lock *os.File) {
	_ = l.lock.Close() // of a file without a name
	l.lock = lock
}

// bindAgain binds the socket at its path as Listen does. The folder is created if it is gone, with the mode that it
// had. l.change is held.
func (l *Listener) bindAgain() (err error) {
	if l.inherited {
		return errors.New("the service manager owns it: restart the socket unit")
	}
	dir := filepath.Dir(l.Path)
	if err := os.Mkdir(dir, l.folder.Perm()); err == nil {
		if err := os.Chmod(dir, l.folder); err != nil {
			return err
		}
	}
	if err := checkFolder(dir); err != nil {
		return err
	}
	lock := l.lock
	if l.holdsLock() {
		err = checkStale(l.Path, true)
	} else {
		lock, err = lockSocket(l.Path)
	}
	if err != nil {
		return err
	}
	bound, self, err := signAndBind(lock, l.config)
	if err != nil {
		if lock != l.lock {
			err = errors.Join(err, lock.Close())
		}
		return err
	}
	if lock != l.lock {
		l.replaceLock(lock)
	}
	l.mu.Lock()
	old := l.bound
	l.bound, l.self = bound, self
	l.mu.Unlock()
	_ = old.Close() // it has no path any more
	return nil
}
