package kit

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit/child"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

var (
	// Binary is the program under test.
	Binary string

	// Soak selects full sizes (QSIDECAR_SOAK=1). Without it Size returns a tenth.
	Soak = os.Getenv("QSIDECAR_SOAK") != ""

	// figures are the lines of Figure, printed at the end.
	figures struct {
		sync.Mutex
		lines []string
	}
)

// Main is the TestMain of each topic. In a child (see package child) it runs the child's mode.
// Otherwise it finds the binary, runs the tests and prints their figures.
func Main(m *testing.M) {
	child.Main()
	if err := isolate(); err != nil {
		panic(err)
	}
	flag.Parse()
	if !given("test.parallel") {
		_ = flag.Set("test.parallel", "8") // most tests mostly wait
	}
	os.Exit(runTests(m))
}

// isolate hides the config and the sidecar of this host from the tests.
func isolate() error {
	return errors.Join(os.Unsetenv("QSIDECAR_SOCKET"), os.Unsetenv("QSIDECAR_DATABASE"), os.Setenv("QSIDECAR_CONFIG", config.NoFile),
		os.Setenv("QSIDECAR_ENQUEUE_TIMEOUT", "60")) // the clients' default, 2 s, is too short for a loaded machine
}

// compileOnce makes Python and Node keep what they compile in a folder, for all processes of the tests. Python would keep it beside the
// sources, which tests copy while others import them.
func compileOnce(dir string) error {
	return errors.Join(os.Unsetenv("PYTHONDONTWRITEBYTECODE"), os.Setenv("PYTHONPYCACHEPREFIX", filepath.Join(dir, "python")),
		os.Setenv("NODE_COMPILE_CACHE", filepath.Join(dir, "node")))
}

// given reports whether a flag is on the command line.
func given(name string) (is bool) {
	flag.Visit(func(f *flag.Flag) { is = is || f.Name == name })
	return is
}

// root is the root of the repository.
var root = func() string {
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "scripts", "build.sh")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return ".." // tests run below the repository, so it exists
}()

// Path returns the absolute path of a file of the repository.
func Path(name string) string { return filepath.Join(root, filepath.FromSlash(name)) }

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
	if Binary, err = findBinary(dir); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	if err := compileOnce(dir); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	for _, line := range figures.lines {
		fmt.Println("figure:", line)
	}
	return code
}

// findBinary returns the binary that QSIDECAR_BIN names, or builds one in dir: static and without
// the race detector, as users get it. It copies the binary, so that other users can run it wherever
// the checkout is.
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
		return to, local.WriteProgram(to, program)
	}
	if out, err := exec.Command(Path("scripts/build.sh"), to).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the binary: %w\n%s", err, out)
	}
	return to, nil
}

// raiseFileLimit allows 5,000 connections at both ends. The sidecars inherit the limit.
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

// Figure prints a measured figure now and again at the end of the run.
func Figure(t testing.TB, format string, args ...any) {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	t.Log(line)
	figures.Lock()
	defer figures.Unlock()
	figures.lines = append(figures.lines, t.Name()+": "+line)
}

// Size returns full in a soak run and a tenth of it otherwise.
func Size(full int) int {
	if Soak {
		return full
	}
	return full / 10
}
