package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// work is the directory of this run, which every user can enter.
var work string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "deploy:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	syscall.Umask(0o022) // containers of other users read the files of this run
	if err := sweepDead(); err != nil {
		return 1, err
	}
	if work, err = os.MkdirTemp("", fmt.Sprintf("qsdeploy-%d-", os.Getpid())); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, asRoot("rm", "-rf", work).Run()) }()
	if err := os.Chmod(work, 0o755); err != nil {
		return 1, err
	}
	// These tests need servers with their own settings, so they can't use an existing one.
	if err := os.Unsetenv(testserver.EnvURL); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// sweepDead removes the directories of runs that were killed.
func sweepDead() error {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "qsdeploy-*-*"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		pid, err := strconv.Atoi(strings.Split(filepath.Base(dir), "-")[1])
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			if out, err := asRoot("rm", "-rf", dir).CombinedOutput(); err != nil {
				return fmt.Errorf("removing %s, which a killed run left: %w\n%s", dir, err, out)
			}
		}
	}
	return nil
}

// asRoot returns a command that runs as root: directly, or with sudo without a password.
func asRoot(name string, args ...string) *exec.Cmd {
	return local.AsRoot(context.Background(), name, args...)
}

// ranAsRoot reports at the end of a test what it did as root.
func ranAsRoot(t *testing.T, what, figure string) {
	t.Helper()
	if t.Failed() {
		return
	}
	if err := local.RanAsRoot(what, figure); err != nil {
		t.Fatal(err)
	}
}

// folder creates a directory that every user can enter. Root removes all of them at the end,
// because containers leave files of other users.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(work, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// exitCode returns a command's exit code, or -1 if it has none.
func exitCode(err error) int {
	var failed *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &failed):
		return failed.ExitCode()
	}
	return -1
}

// output returns a command's output. A failure of the command fails the test.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, out, errOut.String())
	}
	return string(out)
}

// program returns the built binary.
func program(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("QSIDECAR_BIN")
	if bin == "" {
		bin = filepath.Join("..", "bin", "qsidecar")
	}
	path, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the program is missing (make build, or QSIDECAR_BIN): %v", err)
	}
	return path
}
