//go:build !linux

package worker

import (
	"os"
	"syscall"
)

// commandAttributes are those of a command that runs for a job: a process group of its
// own. The guard alone kills it when this process is killed.
func commandAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// ownExecutable is this program's file, as it was when the program began.
func ownExecutable() (string, error) { return os.Executable() }
