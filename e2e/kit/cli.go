package kit

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Problems returns the texts of check --json of a severity, by topic.
func (s Output) Problems(t testing.TB, severity string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(s.Stdout) {
		var f struct{ Database, Severity, Topic, Text, Fix string }
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if f.Severity == severity {
			all[f.Topic] += f.Text + " → " + f.Fix + "\n"
		}
	}
	return all
}

// Check runs check and compares its exit code.
func (sc *Sidecar) Check(dir string, code int, args ...string) Output {
	sc.T.Helper()
	s := RunCLI(sc.T, dir, nil, append([]string{"check", "--config", sc.ConfigFile}, args...)...)
	if s.Code != code {
		sc.T.Errorf("check %v exits with %d, want %d:\n%s%s", args, s.Code, code, s.Stdout, s.Stderr)
	}
	return s
}

// Output is the exit code and the output of a command.
type Output struct {
	Stdout, Stderr string
	Code           int
}

// RunCLI runs the binary with arguments in a clean environment, with dir as its home.
func RunCLI(t testing.TB, dir string, as *syscall.Credential, args ...string) Output {
	t.Helper()
	return RunCLIWith(t, dir, as, "", args...)
}

// RunCLIWith is RunCLI with a standard input.
func RunCLIWith(t testing.TB, dir string, as *syscall.Credential, stdin string, args ...string) Output {
	t.Helper()
	ctx := testwait.Context(t)
	cmd := exec.CommandContext(ctx, Binary, args...)
	cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "QSIDECAR_CONFIG=none", "GOCOVERDIR=" + os.Getenv("GOCOVERDIR")}
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("qsidecar %s: %v (%v)\n%s%s", strings.Join(args, " "), err, ctx.Err(), out.String(), diag.String())
	}
	return Output{out.String(), diag.String(), cmd.ProcessState.ExitCode()}
}

// WantError checks that a command failed with the code, and that its short output contains all
// texts.
func (s Output) WantError(t testing.TB, code int, words ...string) {
	t.Helper()
	t.Logf("exit %d: %s", s.Code, strings.TrimSpace(s.Stderr))
	if s.Code != code {
		t.Errorf("the exit code is %d, want %d", s.Code, code)
	}
	for _, w := range words {
		if !strings.Contains(s.Stderr, w) {
			t.Errorf("it does not say %q", w)
		}
	}
	if n := strings.Count(s.Stderr, "\n"); n > 8 {
		t.Errorf("the output has %d lines", n)
	}
}
