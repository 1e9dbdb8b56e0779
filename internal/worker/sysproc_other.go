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

// ownProgram is this program's file, as it was when the program began.
func ownProgram() (string, error) { return os.Executable() }
