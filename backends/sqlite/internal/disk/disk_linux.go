// Package disk asks the operating system about the file of a database: its file system, the
// free space, the rights of this process, and the processes that have it open. Package
// sqlite and its diagnose package use it. It uses no package of this module.
package disk

import (
	"bufio"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The ways to use a path, for Access.
const (
	ReadWrite = unix.R_OK | unix.W_OK
	WriteIn   = unix.W_OK | unix.X_OK // for a folder
)

// Access fails if this process has no right to use the path in that way.
func Access(path string, mode uint32) error {
	return unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS)
}

// Owner describes to whom a file belongs, and its mode: "root, mode 0640".
func Owner(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err.Error()
	}
	name := fmt.Sprint("the user ", st.Uid)
	if u, err := user.LookupId(fmt.Sprint(st.Uid)); err == nil {
		name = u.Username
	}
	return fmt.Sprintf("%s, mode %#o", name, st.Mode&0o7777)
}

// FreeSpace returns how many bytes this user can still write to the disk of a folder.
func FreeSpace(folder string) (uint64, error) {
	var s unix.Statfs_t
	if err := Statfs(folder, &s); err != nil {
		return 0, err
	}
	return s.Bavail * uint64(s.Bsize), nil
}

// Bytes of the -shm file and of the database that SQLite locks. SQLite's file format defines them.
const (
	walWriter = 120        // exclusively, by the writer in WAL mode
	walUser   = 128        // shared, by each process that has the database open in WAL mode
	reserved  = 0x40000001 // exclusively, by the writer in other modes
)

// Writer returns the process that holds the write lock, or 0 if there is none. It reads the kernel's
// list of locks: opening and closing the file here would drop this process's locks on it.
func Writer(path string) (int, error) {
	for file, at := range map[string]int64{path + "-shm": walWriter, path: reserved} {
		pids, err := holders(file, at, true)
		if err != nil {
			return 0, err
		}
		if len(pids) > 0 {
			return pids[0], nil
		}
	}
	return 0, nil
}

// Users returns the other processes that have the database open, as far as this process can
// see them.
func Users(path string) []int {
	pids, err := holders(path+"-shm", walUser, false)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(pids, func(pid int) bool { return pid == os.Getpid() })
}

// holders returns the processes with a lock on a byte of a file.
func holders(file string, at int64, write bool) (pids []int, err error) {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return nil, nil // no file, so no locks
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the file was only read
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	s := bufio.NewScanner(f)
	for s.Scan() {
		// 1: POSIX  ADVISORY  WRITE 4711 fd:01:1234567 120 120
		x := strings.Fields(s.Text())
		if len(x) != 8 || x[1] != "POSIX" || x[5] != inode || write && x[3] != "WRITE" {
			continue
		}
		pid, err1 := strconv.Atoi(x[4])
		from, err2 := strconv.ParseInt(x[6], 10, 64)
		to, err3 := strconv.ParseInt(x[7], 10, 64)
		if err3 != nil && x[7] == "EOF" {
			to, err3 = at, nil
		}
		if err1 == nil && err2 == nil && err3 == nil && from <= at && at <= to {
			pids = append(pids, pid)
		}
	}
	return pids, s.Err()
}
