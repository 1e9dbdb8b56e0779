// Package local has what the test servers need of this machine: an account, processes, ports, and folders for data and
// downloads.
package local

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// Account is the user of the servers. PostgreSQL refuses to run as root.
type Account struct {
	UID, GID int
	Drop     bool // this process is root and must switch to that user
}

// Unprivileged returns the account that servers run as: that of this process or, for root, the first of the accounts
// `postgres` and `nobody` that exists.
func Unprivileged() (Account, error) {
	if os.Geteuid() != 0 {
		return Account{UID: os.Geteuid(), GID: os.Getegid()}, nil
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return Account{}, err
	}
	for _, name := range []string{"postgres", "nobody"} {
		for line := range strings.Lines(string(passwd)) {
			field := strings.Split(strings.TrimSpace(line), ":")
			if len(field) < 4 || field[0] != name {
				continue
			}
			uid, err1 := strconv.Atoi(field[2])
			gid, err2 := strconv.Atoi(field[3])
			return Account{UID: uid, GID: gid, Drop: true}, errors.Join(err1, err2)
		}
	}
	return Account{}, errors.New("the servers must not run as root, and /etc/passwd has neither postgres nor nobody")
}

// Attributes are those of a child that runs as a and gets the signal last if this process dies. The
// thread that starts the child must stay: see guard.
func (a Account) Attributes(last syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Pdeathsig: last}
	if a.Drop {
		attr.Credential = &syscall.Credential{Uid: uint32(a.UID), Gid: uint32(a.GID)}
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
