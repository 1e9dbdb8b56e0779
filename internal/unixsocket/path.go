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
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// PathError explains why a socket cannot be at a path.
type PathError struct {
	Problem string // why the socket cannot be created there
	Fix     string // what to do about it
	// Foreign: it belongs to another user, and is possibly right for a process of that user.
	Foreign bool
}

func (e *PathError) Error() string { return e.Problem + ": " + e.Fix }

// CheckPath returns why Listen would refuse the path: a *PathError or an error of the file system. It changes
// nothing. A missing folder is not an error. If a sidecar serves the path, it is an error that clients don't reach it.
func CheckPath(path string) error {
	if err := fits(path); err != nil {
		return err
	}
	if err := checkFolder(filepath.Dir(path)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if _, err := inTheWay(path); err != nil {
		return err
	}
	lock := path + ".lock"
	info, err := os.Lstat(lock)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	if err := ownFile(lock, info); err != nil {
		return err
	}
	return checkServed(path)
}

// checkServed returns an error if a sidecar holds the lock of the path, and no process listens there.
func checkServed(path string) error {
	lock, err := os.Open(path + ".lock")
	if err != nil {
		return nil // of another user, or gone
	}
	defer func() { _ = lock.Close() }() // only read from
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return nil // no sidecar holds it
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		return conn.Close()
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return &PathError{
			Problem: fmt.Sprintf("a running sidecar%s lost its socket's file, so clients can't connect", inBrackets(lockOwner(lock))),
			Fix:     "see the events socket_lost and socket_not_bound in its log",
		}
	}
	return nil // busy, or closed to this user
}

// MaxPath is the longest path in bytes that fits sun_path on Linux. Other systems have a little less and report it
// themselves.
const MaxPath = 107

// fits returns an error if the path is too long for clients to connect to.
func fits(path string) error {
	if len(path) <= MaxPath {
		return nil
	}
	return &PathError{Problem: fmt.Sprintf("the path has %d bytes, and a Unix socket's path can have %d", len(path), MaxPath), Fix: "choose a shorter one"}
}

// removeIt is the fix if something is in the way.
const removeIt = "remove it, or choose another --socket"

// blocked is the error if something is in the way.
func blocked(format string, args ...any) *PathError {
	return &PathError{Problem: fmt.Sprintf(format, args...), Fix: removeIt}
}

// foreign marks the error as one about another user.
func (e *PathError) foreign() *PathError {
	e.Foreign = true
	return e
}

// checkFolder returns an error unless only root and this process's user can replace the socket or its lock in the
// folder. A sticky bit, as /tmp has it, is enough: other users cannot remove what exists then, and Listen refuses
// what they created before (checkStale, openLock). Group 0 is root's. A private group is its user's. A symbolic
// link to the folder is followed.
func checkFolder(dir string) error {
	const instead = "or give the socket a folder of its own"
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	uid, gid := ownerOf(info)
	mode := info.Mode()
	switch {
	case !info.IsDir():
		return &PathError{Problem: dir + " isn't a folder", Fix: "choose another --socket"}
	case uid != 0 && uid != os.Geteuid():
		return &PathError{
			Problem: fmt.Sprintf("the folder %s belongs to %s, and this user could replace the socket", dir, userName(uid)),
			Fix:     fmt.Sprintf("choose a folder of root's or of the sidecar's own user (%d), or run it as that other one", os.Geteuid()),
			Foreign: true,
		}
	case mode&fs.ModeSticky != 0:
		return nil
	case mode.Perm()&0o002 != 0:
		return &PathError{
			Problem: fmt.Sprintf("every user can write the folder %s (mode %04o), and replace the socket", dir, mode.Perm()),
			Fix:     "chmod o-w it, " + instead,
		}
	case mode.Perm()&0o020 != 0 && gid != 0 && !privateGroup(gid):
		return &PathError{
			Problem: fmt.Sprintf("the group %s can write the folder %s (mode %04o), and replace the socket", groupName(gid), dir, mode.Perm()),
			Fix:     "chmod g-w it, " + instead + " (the socket's own mode and group decide which users can connect)",
		}
	}
	return nil
}

// inTheWay returns an error if the path has anything but a socket of this user, and whether it is a socket.
func inTheWay(path string) (exists bool, err error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Mode()&fs.ModeSymlink != 0:
		return true, blocked("a symbolic link is in the way")
	case info.Mode()&fs.ModeSocket == 0:
		return true, blocked("a file that isn't a socket is in the way")
	}
	if uid, _ := ownerOf(info); uid != os.Geteuid() {
		return true, blocked("a socket of %s is in the way", userName(uid)).foreign()
	}
	return true, nil
}

func ownerOf(info fs.FileInfo) (uid, gid int) {
	st := info.Sys().(*syscall.Stat_t)
	return int(st.Uid), int(st.Gid)
}

// userName is a user for messages: by number, and by name if that is known.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return fmt.Sprintf("user %d (%s)", uid, u.Username)
	}
	return fmt.Sprintf("user %d", uid)
}

func groupName(gid int) string {
	if g, err := user.LookupGroupId(strconv.Itoa(gid)); err == nil {
		return fmt.Sprintf("%d (%s)", gid, g.Name)
	}
	return strconv.Itoa(gid)
}
