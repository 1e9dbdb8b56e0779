package testserver

import (
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// TestGuardSparesOthers: a child that dies with the thread that made it does not die when a
// server that was started on that thread ends. Each guard takes some thread that is idle:
// with one processor, soon the one that made the child.
func TestGuardSparesOthers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	child := exec.Command("sleep", "60")
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		done := make(chan struct{})
		guard(func() { close(done) })
		<-done
		runtime.Gosched()
	}
	if err := child.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("the child: %v", err)
	}
	err := child.Wait()
	if s, ok := child.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGTERM {
		t.Errorf("the child ended with %v", err)
	}
}
