package proc

import (
	"os/exec"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestCPUOfChildren checks that the CPU time of a process includes its children, also after they
// ended.
func TestCPUOfChildren(t *testing.T) {
	sh := exec.Command("sh", "-c", "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'; read x")
	in, err := sh.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the loop in a child has used CPU time", func() bool {
		used, err := CPU(sh.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return used >= 2*tick
	})
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	_ = sh.Wait() // read fails at the end of input
}
