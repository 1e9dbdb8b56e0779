package proc

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestCPUOfChildren checks that the CPU time of a process includes its children, also after they ended.
func TestCPUOfChildren(t *testing.T) {
	sh := exec.Command("sh", "-c", "sh -c 'trap \"exit 0\" TERM; echo $$; while :; do :; done'; echo ended; read x")
	in, err := sh.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := sh.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal(err)
	}
	used := func() int {
		cpu, err := CPU(sh.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return int(cpu / tick)
	}
	testwait.Until(t, "the child has used CPU time", func() bool { return used() >= 2 })
	if err := exec.Command("kill", fmt.Sprint(child)).Run(); err != nil {
		t.Fatal(err)
	}
	var ended string
	if _, err := fmt.Fscan(out, &ended); err != nil || ended != "ended" {
		t.Fatal(ended, err)
	}
	if n := used(); n < 2 {
		t.Errorf("%d ticks of CPU time after the child has ended, want at least 2", n)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	_ = sh.Wait() // read fails at the end of input
}
