package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// openLock opens the lock file beside a socket, or creates it. The file must belong to root or this process's user
// and must have one name. openLock neither follows nor changes the files of other users.
func openLock(path string) (*os.File, error) {
	if info, err := os.Lstat(path); err == nil {
		if err := ownFile(path, info); err != nil {
			return nil, err
		}
	}
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	info, err := lock.Stat()
	if err == nil {
		err = ownFile(path, info) // the file was possibly replaced after Lstat
	}
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = lock.Chmod(0o600) // a user that can open it can hold it
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

func ownFile(path string, info fs.FileInfo) error {
	uid, _ := ownerOf(info)
	links := info.Sys().(*syscall.Stat_t).Nlink
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return blocked("a symbolic link is in the way of its lock file %s", path)
	case !info.Mode().IsRegular():
		return blocked("something that isn't a file is in the way of its lock file %s", path)
	case uid != 0 && uid != os.Geteuid():
		return blocked("the lock file %s belongs to %s", path, userName(uid)).foreign()
	case links != 1:
		return blocked("the lock file %s has %d names (hard links)", path, links)
	}
	return nil
}

// lockSocket locks the lock file beside the socket until this process ends, and makes sure that no other process
// serves the path.
func lockSocket(path string) (*os.File, error) {
	if _, err := inTheWay(path); err != nil {
		return nil, err // before a lock file is created beside a file of another user
	}
	lock, err := takeLock(path)
	if err != nil {
		return nil, err
	}
	if err := checkStale(path, lockOwner(lock) != ""); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// CheckFree returns an error if another process serves the path, or if a file is in the way.
func CheckFree(path string) error {
	lock, err := lockSocket(path)
	if err != nil {
		return err
	}
	return lock.Close()
}

// takeLock locks the lock file beside the socket, or returns an error if another sidecar holds it.
func takeLock(path string) (*os.File, error) {
	lock, err := openLock(path + ".lock")
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("another sidecar%s serves it: stop that one, or choose another --socket", inBrackets(lockOwner(lock)))
		}
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// lockOwner is the id of the process that served the socket last and did not remove it, or empty.
func lockOwner(lock *os.File) string {
	var buf [20]byte
	n, _ := lock.ReadAt(buf[:], 0) // if it cannot be read, the PID is empty
	return strings.TrimSpace(string(buf[:n]))
}

func inBrackets(pid string) string {
	if pid == "" {
		return ""
	}
	return " (pid " + pid + ")"
}

// sign writes this process's id into the lock file.
func sign(lock *os.File) error {
	if err := lock.Truncate(0); err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	_, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// unsign empties the lock file if the socket is gone.
func unsign(lock *os.File, path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return lock.Truncate(0)
}

// checkStale returns an error unless the path is free, or has a socket of this user that no process answers on and
// that a sidecar left. left: the lock file names that sidecar.
func checkStale(path string, left bool) error {
	if exists, err := inTheWay(path); err != nil || !exists {
		return err
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		who, _ := peerOf(conn.(*net.UnixConn)) // only for the message
		_ = conn.Close()                       // it only checked whether a process answers
		pid := ""
		if who != nil && who.PID != 0 {
			pid = strconv.Itoa(int(who.PID))
		}
		return fmt.Errorf("another program%s answers on it: stop that one, or choose another --socket", inBrackets(pid))
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("cannot find out whether the existing socket is stale: %w", err)
	}
	if !left {
		return errors.New("a socket on which no process answers is in the way, and its lock file has no sign that a sidecar left it: " + removeIt)
	}
	return nil
}
