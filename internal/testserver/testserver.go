// Package testserver fetches and starts temporary database servers, PgBouncer and Python
// environments for tests and benchmarks. If a server is unavailable, it returns an error instead of
// skipping: a check that did not run must not look like a passed one. The exception is ErrUnavailable.
//
// Start with StartPostgres (postgres.go) and StartMySQL (mysql.go). fetch.go, debian.go and
// mysql_fetch.go download the servers, and directories.go chooses their directories.
package testserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// account is the user of the servers. PostgreSQL refuses to run as root.
type account struct {
	uid, gid int
	drop     bool // this process is root and must switch to that user
}

// unprivileged returns the account that servers run as: that of this process or, for root, the first of the accounts
// `postgres` and `nobody` that exists.
func unprivileged() (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return account{}, err
	}
	for _, name := range []string{"postgres", "nobody"} {
		for line := range strings.Lines(string(passwd)) {
			field := strings.Split(strings.TrimSpace(line), ":")
			if len(field) < 4 || field[0] != name {
				continue
			}
			uid, err1 := strconv.Atoi(field[2])
			gid, err2 := strconv.Atoi(field[3])
			return account{uid: uid, gid: gid, drop: true}, errors.Join(err1, err2)
		}
	}
	return account{}, errors.New("the servers must not run as root, and /etc/passwd has neither postgres nor nobody")
}

// attributes are those of a child that runs as a and gets the signal last if this process dies. The
// thread that starts the child must stay: see guard.
func (a account) attributes(last syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Pdeathsig: last}
	if a.drop {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// guard runs f on its own thread. The kernel sends a child its parent-death signal when the
// *thread* that started the child ends. The thread continues after f, because it may have started
// other children of this process. (A goroutine that ends while locked to its thread ends the
// thread.)
func guard(f func()) {
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		f()
	}()
}

// cacheDir returns the directory in which fetched servers are kept between runs: below
// $XDG_CACHE_HOME, or .cache in this repository, or, if the servers' user can't enter those, below
// /var/tmp.
func cacheDir(a account) (string, error) {
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
		if err == nil && a.drop {
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
func CacheDir() (string, error) { return cacheDir(account{}) }

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

// locked runs f while it holds the lock file, which excludes other processes.
func locked(path string, f func() error) (err error) {
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
