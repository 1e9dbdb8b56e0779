package worker

import "syscall"

// commandAttributes give the command of a job a process group of its own. The kernel kills
// the command when this process is killed.
func commandAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// ownExecutable returns the path of this program, even if its file was replaced.
func ownExecutable() (string, error) { return "/proc/self/exe", nil }
