package worker

import "syscall"

// commandAttributes are those of a command that runs for a job: a process group of its
// own, and killed when this process is.
func commandAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// ownProgram is this very program, also where its file was replaced meanwhile.
func ownExecutable() (string, error) { return "/proc/self/exe", nil }
