package clientlib

import (
	"bufio"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
)

// Example returns the code block below the line that marks a README's example.
func Example(t *testing.T, readme, language string) string {
	t.Helper()
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)<!-- example -->\n+```" + language + "\n(.*?)```").FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s has no block of %s below <!-- example -->", readme, language)
	}
	return string(found[1])
}

// RunExample runs the example of a README, which greets Ada, and stops it.
func RunExample(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "hello, Ada\n" {
		t.Errorf("it printed %q, want the greeting of Ada (%v)", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v, want the exit code 0", err)
	}
}
