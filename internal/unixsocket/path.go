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
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// PlaceError says why a socket cannot be where it should.
type PathError struct {
	Problem string // what is wrong with its folder, or in its way
	Fix     string // what can be done about it
	// Foreign: it belongs to another user, and might be right for a sidecar of that one.
	Foreign bool
}

func (e *PathError) Error() string { return e.Problem + ": " + e.Fix }

// CheckPlace says why a sidecar of this user would not serve a socket at the path: it returns a
// *PlaceError, or an error of the file system. It makes and changes nothing. A folder that is
// missing is none, for it is made; whether somebody serves the socket is not asked.
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
	return ownFile(lock, info)
}

// maxSocketPath is what fits sun_path with its closing NUL on Linux; other
// systems have a little less, and say so themselves.
const MaxPath = 107

// fits wants the path to be one that clients can connect to.
func fits(path string) error {
	if len(path) <= MaxPath {
		return nil
	}
	return &PathError{Problem: fmt.Sprintf("the path has %d bytes, a Unix socket's may have %d", len(path), MaxPath), Fix: "choose a shorter one"}
}

// removeIt is what can be done about what is in the way.
const removeIt = "remove it, or choose another --socket"

// blocked is an error about what is in the way.
func blocked(format string, args ...any) *PathError {
	return &PathError{Problem: fmt.Sprintf(format, args...), Fix: removeIt}
}

// foreign is the error where the other user is what is wrong.
func (e *PathError) foreign() *PathError {
	e.Foreign = true
	return e
}

// checkFolder wants the folder of a socket to be one in which nobody but root and this
// process's user can put another file in the place of the socket or of its lock. A
// sticky bit, as /tmp has it, is enough: then nobody else can remove what is there, and
// what others put there before is found and refused (checkStale, openLock). Group 0 is
// root's, and a user's private group is the user's. A symbolic link to the folder is followed.
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
		return &PathError{Problem: dir + " is no folder", Fix: "choose another --socket"}
	case uid != 0 && uid != os.Geteuid():
		return &PathError{
			Problem: fmt.Sprintf("the folder %s belongs to %s, who could put another socket in the place of this one", dir, userName(uid)),
			Fix:     fmt.Sprintf("choose a folder of root's or of the sidecar's own user (%d), or run it as that other one", os.Geteuid()),
			Foreign: true,
		}
	case mode&fs.ModeSticky != 0:
		return nil
	case mode.Perm()&0o002 != 0:
		return &PathError{
			Problem: fmt.Sprintf("every user can write the folder %s (mode %04o), and put another socket in the place of this one", dir, mode.Perm()),
			Fix:     "chmod o-w it, " + instead,
		}
	case mode.Perm()&0o020 != 0 && gid != 0 && !privateGroup(gid):
		return &PathError{
			Problem: fmt.Sprintf("the group %s can write the folder %s (mode %04o), and put another socket in the place of this one", groupName(gid), dir, mode.Perm()),
			Fix:     "chmod g-w it, " + instead + " (who may connect is said by the socket's own mode and group)",
		}
	}
	return nil
}

// openLock opens the lock file beside a socket, or makes it. It must be a file of root or of this
// process's user and have no other name: what others put there is neither followed nor changed.
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
		err = ownFile(path, info) // it may be another one than a moment ago
	}
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = lock.Chmod(0o600) // whoever can open it can hold it
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
		return blocked("what is no file is in the way of its lock file %s", path)
	case uid != 0 && uid != os.Geteuid():
		return blocked("the lock file %s belongs to %s", path, userName(uid)).foreign()
	case links != 1:
		return blocked("the lock file %s has %d names (hard links)", path, links)
	}
	return nil
}

// lockSocket takes the lock file beside the socket, which lives as long as this
// process, and makes sure that nobody else serves the path.
func lockSocket(path string) (*os.File, error) {
	if _, err := inTheWay(path); err != nil {
		return nil, err // and no lock file is made beside what is somebody else's
	}
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
	if err := checkStale(path, lockOwner(lock) != ""); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// lockOwner is the process that served the socket last, and did not remove it; empty: it did.
func lockOwner(lock *os.File) string {
	var buf [20]byte
	n, _ := lock.ReadAt(buf[:], 0) // what cannot be read names nobody
	return strings.TrimSpace(string(buf[:n]))
}

func inBrackets(pid string) string {
	if pid == "" {
		return ""
	}
	return " (pid " + pid + ")"
}

// sign writes into the lock file who serves the socket.
func sign(lock *os.File) error {
	if err := lock.Truncate(0); err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	_, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// unsign says in the lock file that this process left no socket behind, if there is none.
func unsign(lock *os.File, path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return lock.Truncate(0)
}

// inTheWay refuses everything at the path but a socket of this user's; there may be none.
func inTheWay(path string) (there bool, err error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Mode()&fs.ModeSymlink != 0:
		return true, blocked("a symbolic link is in the way")
	case info.Mode()&fs.ModeSocket == 0:
		return true, blocked("a file that is no socket is in the way")
	}
	if uid, _ := ownerOf(info); uid != os.Geteuid() {
		return true, blocked("a socket of %s is in the way", userName(uid)).foreign()
	}
	return true, nil
}

// checkStale allows to replace nothing but a socket of this user's that nobody answers on,
// and that a sidecar which did not end in order left, as its lock file says.
func checkStale(path string, left bool) error {
	if there, err := inTheWay(path); err != nil || !there {
		return err
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		who, _ := peerOf(conn.(*net.UnixConn)) // who it is, is for the message alone
		_ = conn.Close()                       // it was only asked whether somebody answers
		pid := ""
		if who != nil {
			pid = strconv.Itoa(int(who.PID))
		}
		return fmt.Errorf("another program%s answers on it: stop that one, or choose another --socket", inBrackets(pid))
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("cannot tell whether the socket there is stale: %w", err)
	}
	if !left {
		return errors.New("a socket on which nobody answers is in the way, and its lock file does not say that a sidecar left it: " + removeIt)
	}
	return nil
}

func ownerOf(info fs.FileInfo) (uid, gid int) {
	st := info.Sys().(*syscall.Stat_t)
	return int(st.Uid), int(st.Gid)
}

// userName is how a user is called in messages: by number, and by name where that is known.
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
