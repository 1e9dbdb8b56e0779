package journeys

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestMakeRunHints checks the commands that `make run` prints, also for a user without
// XDG_RUNTIME_DIR who can't write to /run.
func TestMakeRunHints(t *testing.T) {
	t.Run("with a runtime directory", func(t *testing.T) {
		s := kit.NewSite(t)
		makeRun(t, s, nil, "XDG_STATE_HOME="+s.Dir, "XDG_RUNTIME_DIR="+s.Dir)
	})
	t.Run("without", func(t *testing.T) {
		s := kit.NewSite(t)
		if os.Geteuid() != 0 {
			makeRun(t, s, nil, "XDG_STATE_HOME="+s.Dir)
			return
		}
		const user = 65534
		if err := os.Chown(s.Dir, user, user); err != nil {
			t.Fatal(err)
		}
		makeRun(t, s, &syscall.Credential{Uid: user, Gid: user}, "XDG_STATE_HOME="+s.Dir)
	})
}

func makeRun(t *testing.T, s *kit.Site, as *syscall.Credential, env ...string) {
	env = append(env, "HOME="+s.Dir, "PATH="+os.Getenv("PATH"))
	ctx := testwait.Context(t)
	serve := exec.CommandContext(ctx, kit.Binary, "serve", "--config", "none", "--hint")
	serve.Env, serve.Dir = env, s.Dir
	serve.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	out, err := serve.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	var paste []string
	for lines := bufio.NewScanner(out); len(paste) < 3 && lines.Scan(); {
		if line, ok := strings.CutPrefix(lines.Text(), "  "); ok {
			paste = append(paste, line)
		}
	}
	shell := exec.CommandContext(ctx, "sh", "-e", "-c", strings.Join(paste, "\n"))
	shell.Env, shell.Dir = env, s.Dir
	shell.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	text, err := shell.CombinedOutput()
	t.Logf("%s\n%s", strings.Join(paste, "\n"), text)
	if err != nil || len(paste) != 3 || !strings.Contains(string(text), "hello, world") || !strings.Contains(string(text), "mail") {
		t.Errorf("the %d lines: %v", len(paste), err)
	}
	if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := serve.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	s.URL = "sqlite:" + filepath.Join(s.Dir, "qsidecar", "qsidecar.db")
	if left := s.JobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left in the default database", left)
	}
}

// TestStdio checks a child process with its own sidecar, and one that forwards to the host's
// sidecar.
func TestStdio(t *testing.T) {
	s := kit.NewSite(t)
	a := s.Start("a")
	for _, how := range [][]string{
		{"stdio", "--socket", a.Socket},
		{"stdio", "--database", s.URL},
	} {
		script := `{"op":"enqueue","queue":"q","payload":"by stdio"}` + "\n" + `{"op":"claim","queue":"q"}` + "\n"
		r := kit.RunCLIWith(t, s.Dir, nil, script, how...)
		if r.Code != 0 || strings.Count(r.Stdout, "\n") != 2 || strings.Count(r.Stdout, `"ok":true`) != 2 {
			t.Errorf("%v: exit code %d, answered %s%s", how, r.Code, r.Stdout, r.Stderr)
		}
		// The end of input returned the claimed job without using up an attempt.
		c := a.Dial()
		job := c.ClaimOne("q")
		if job.Attempt != 1 || job.Payload != "by stdio" {
			t.Errorf("%v: then the job is %+v, want it on its first attempt", how, job)
		}
		c.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	}
}

// TestShellLife checks a job's life in shell commands, with the exit codes that scripts rely on.
func TestShellLife(t *testing.T) {
	s := kit.NewSite(t)
	a := s.Start("a")
	run := func(code int, stdin string, args ...string) {
		t.Helper()
		r := kit.RunCLIWith(t, s.Dir, nil, stdin, append(args, "--socket", a.Socket)...)
		if r.Code != code {
			t.Fatalf("qsidecar %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), r.Code, code, r.Stdout, r.Stderr)
		}
	}
	run(0, "", "ping")
	run(3, "", "claim", "q")
	run(0, "one\ntwo\nthree\n", "enqueue", "q", "-", "--lines")
	script := `set -e
eval "$("$0" claim q --env --socket "$1")"
test "$QSIDECAR_PAYLOAD" = one
"$0" extend "$QSIDECAR_LEASE" --socket "$1"
"$0" ack "$QSIDECAR_LEASE" --socket "$1"
"$0" ack "$QSIDECAR_LEASE" --socket "$1" || exit $?`
	shell := exec.Command("sh", "-c", script, kit.Binary, a.Socket)
	if out, err := shell.CombinedOutput(); shell.ProcessState.ExitCode() != 4 {
		t.Errorf("acking twice: %v, want exit code 4 (lease lost)\n%s", err, out)
	}
	run(0, "", "pause", "q")
	run(3, "", "claim", "q")
	run(0, "", "resume", "q")
	run(0, "", "purge", "q", "--state", "ready", "--yes")
	if got := a.Dial().Stats("q"); got.Total() != 0 {
		t.Errorf("after the purge the queue has %+v", got)
	}
}
