//go:build !linux

package worker

import (
	"os"
	"syscall"
)

// commandAttributes give the command of a job a process group of its own. Only the guard
// kills it when this process is killed.
func commandAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// ownExecutable returns the path from which this program was started.
func ownExecutable() (string, error) { return os.Executable() }
