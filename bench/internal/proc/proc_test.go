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
	const before = 20
	testwait.Until(t, "the child has used CPU time", func() bool { return used() >= before })
	if err := exec.Command("kill", fmt.Sprint(child)).Run(); err != nil {
		t.Fatal(err)
	}
	var ended string
	if _, err := fmt.Fscan(out, &ended); err != nil || ended != "ended" {
		t.Fatal(ended, err)
	}
	// Of ended children the kernel keeps user and system time, each rounded, and some kernels count whole ticks only.
	// The shell itself uses no tick or two. So the half shows that the child's time was kept.
	if n := used(); n < before/2 {
		t.Errorf("%d ticks of CPU time after the child has ended, want at least %d of the %d before", n, before/2, before)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	_ = sh.Wait() // read fails at the end of input
}
