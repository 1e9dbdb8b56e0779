package local

import (
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// TestGuardKillsOnlyItsServer checks that a child which dies with the thread that started it does not die
// when a server ends that was started on the same thread. Each guard uses some idle thread. With
// one processor, that is soon the thread of the child.
func TestGuardKillsOnlyItsServer(t *testing.T) {
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
