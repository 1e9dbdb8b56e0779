package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

var (
	// binary is the program under test.
	binary string

	// soak asks for the sizes that issues name; without it a tenth of them.
	soak = os.Getenv("QSIDECAR_SOAK") != ""

	// figures are the lines that figure collects for the end.
	figures struct {
		sync.Mutex
		lines []string
	}
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(workerMode); mode != "" {
		os.Exit(runWorkerMode(mode))
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if err := raiseFileLimit(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	dir, err := os.MkdirTemp("", "qsidecar-bin")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	if binary, err = findBinary(dir); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	for _, line := range figures.lines {
		fmt.Println("e2e:", line)
	}
	return code
}

// findBinary is the binary that QSIDECAR_BIN names, or one built into dir: static
// and without the race detector, as users get it. It is copied, so that users
// other than this one can run it wherever the checkout lies.
func findBinary(dir string) (string, error) {
	to := filepath.Join(dir, "qsidecar")
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	if from := os.Getenv("QSIDECAR_BIN"); from != "" {
		program, err := os.ReadFile(from)
		if err != nil {
			return "", fmt.Errorf("QSIDECAR_BIN: %w", err)
		}
		return to, testserver.WriteProgram(to, program)
	}
	if out, err := exec.Command("../scripts/build.sh", to).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the binary: %w\n%s", err, out)
	}
	return to, nil
}

// raiseFileLimit makes room for 5,000 connections, at both ends: the sidecars
// inherit it.
func raiseFileLimit() error {
	const want = 12_000
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	if l.Max < want {
		return fmt.Errorf("the limit of open files is %d here, the tests need %d: raise it (ulimit -Hn)", l.Max, want)
	}
	l.Cur = max(l.Cur, want)
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
}

// figure prints a measured figure with the test and once more at the very end.
func figure(t testing.TB, format string, args ...any) {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	t.Log(line)
	figures.Lock()
	defer figures.Unlock()
	figures.lines = append(figures.lines, t.Name()+": "+line)
}

// size is full in a soak and a tenth of it otherwise.
func size(full int) int {
	if soak {
		return full
	}
	return full / 10
}
