package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// CacheDirOf returns the directory in which fetched servers are kept between runs: below
// $XDG_CACHE_HOME, or .cache in this repository, or, if the servers' user can't enter those, below
// /var/tmp.
func CacheDirOf(a Account) (string, error) {
	var directories []string
	if base := os.Getenv("XDG_CACHE_HOME"); base != "" {
		directories = append(directories, filepath.Join(base, "qsidecar-test"))
	} else if root, err := Repository(); err == nil {
		directories = append(directories, filepath.Join(root, ".cache", "servers"))
	}
	directories = append(directories, filepath.Join("/var/tmp", fmt.Sprintf("qsidecar-test-%d", os.Geteuid())))
	var failed error
	for _, dir := range directories {
		err := os.MkdirAll(dir, 0o755)
		if err == nil && a.Drop {
			err = openToAll(dir)
		}
		if err == nil {
			return dir, nil
		}
		failed = errors.Join(failed, err)
	}
	return "", fmt.Errorf("no usable directory for the fetched servers: %w", failed)
}

// CacheDir returns a directory for other programs that tests fetch.
func CacheDir() (string, error) { return CacheDirOf(Account{}) }

// Repository returns this repository's root. The working directory can be in another module of it
// (bench).
func Repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "internal", "testserver")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("this repository is not here or above")
		}
		dir = up
	}
}

// openToAll checks that any user can enter dir and its parents.
func openToAll(dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o005 != 0o005 {
			return fmt.Errorf("%s may not be entered by other users", at)
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

// Locked runs f while it holds the lock file, which excludes other processes.
func Locked(path string, f func() error) (err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }() // also unlocks
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", path, err)
	}
	return f()
}

// EnvMemory names a directory in memory, such as /dev/shm, for the data of tests. Tests kill
// processes, not the machine, so they need no disk, and a busy disk can stall for longer than a
// lease lasts. Durable servers use it too, with all their durability settings, except in full-size
// runs (QSIDECAR_SOAK).
const EnvMemory = "QSIDECAR_TEST_MEMORY"

// memoryFree is how many bytes must be free there for the data and logs of several servers.
const memoryFree = 6 << 30

// NewServerDir creates a directory for a server, in memory or in the system's temporary directory.
func NewServerDir(prefix string, durable bool) (string, error) {
	return os.MkdirTemp(tempDirFor(durable), fmt.Sprintf("%s-%d-", prefix, os.Getpid()))
}

// TempDir returns the directory for a test's own files: in memory (see EnvMemory), or the system's
// temporary directory.
func TempDir() string { return tempDirFor(true) }

func tempDirFor(durable bool) string {
	return chooseTempDir(durable && os.Getenv("QSIDECAR_SOAK") != "", os.Getenv(EnvMemory))
}

// chooseTempDir returns memory if it has enough space, otherwise the system's temporary directory.
func chooseTempDir(disk bool, memory string) string {
	var fs syscall.Statfs_t
	if disk || memory == "" || syscall.Statfs(memory, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < memoryFree {
		return os.TempDir()
	}
	return memory
}

// serverDirs returns the directories of servers, including those of test processes that were killed.
func serverDirs() (found []string, err error) {
	roots := []string{os.TempDir()}
	if memory := os.Getenv(EnvMemory); memory != "" {
		roots = append(roots, memory)
	}
	for _, root := range roots {
		some, err := filepath.Glob(filepath.Join(root, "qs[pm][gy]-*-*"))
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// RemoveDeadServers removes the directories of test processes that were killed.
func RemoveDeadServers() {
	left, err := serverDirs()
	if err != nil {
		return // can't fail: the pattern is constant
	}
	for _, dir := range left {
		pid, err := strconv.Atoi(strings.Split(filepath.Base(dir), "-")[1])
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir) // another process can remove it at the same time
		}
	}
}

// WriteProgram is os.WriteFile for a program that the test will run. While the file is open for
// writing, no other goroutine forks. Otherwise the child would have the file open until its exec,
// and running the program in that time fails with "text file busy" (https://go.dev/issue/22315).
func WriteProgram(path string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()

	return os.WriteFile(path, content, 0o755)
}
