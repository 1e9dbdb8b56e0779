package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// said is how a command ended and what it said.
type said struct {
	out, diag string
	code      int
}

// cli runs the binary with arguments, in an environment of its own: nothing of
// the caller's, and dir as its home.
func cli(t testing.TB, dir string, as *syscall.Credential, args ...string) said {
	t.Helper()
	return cliWith(t, dir, as, "", args...)
}

func cliWith(t testing.TB, dir string, as *syscall.Credential, stdin string, args ...string) said {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}
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
	return said{out.String(), diag.String(), cmd.ProcessState.ExitCode()}
}

// tells checks that a command failed with the code and said all the words, in a
// few lines.
func (s said) tells(t testing.TB, code int, words ...string) {
	t.Helper()
	t.Logf("exit %d: %s", s.code, strings.TrimSpace(s.diag))
	if s.code != code {
		t.Errorf("the exit code is %d, want %d", s.code, code)
	}
	for _, w := range words {
		if !strings.Contains(s.diag, w) {
			t.Errorf("it does not say %q", w)
		}
	}
	if n := strings.Count(s.diag, "\n"); n > 8 {
		t.Errorf("it says so in %d lines", n)
	}
}

// TestMessages: what the command line says when something is wrong names what,
// where, and what to do.
func TestMessages(t *testing.T) {
	s := newSite(t)
	nowhere := filepath.Join(s.dir, "nowhere.sock")
	t.Run("no-socket", func(t *testing.T) {
		for _, args := range [][]string{{"ping"}, {"enqueue", "q", "x"}, {"claim", "q"}, {"stats"}} {
			cli(t, s.dir, nil, append(args, "--socket", nowhere)...).tells(t, 5, nowhere, "qsidecar serve")
		}
	})
	t.Run("a-stale-socket", func(t *testing.T) {
		a := s.started("stale")
		a.kill()
		cli(t, s.dir, nil, "ping", "--socket", a.socket).tells(t, 5, a.socket, "qsidecar serve")
	})
	t.Run("no-permission", func(t *testing.T) { noPermission(t, newSite(t)) })
	t.Run("the-database-is-a-directory", func(t *testing.T) {
		cli(t, s.dir, nil, "serve", "--socket", nowhere, "--database", "sqlite:"+s.dir).tells(t, 1, s.dir)
	})
	t.Run("the-database-is-no-database", func(t *testing.T) {
		file := filepath.Join(s.dir, "letter.txt")
		if err := os.WriteFile(file, bytes.Repeat([]byte("Dear Sir or Madam\n"), 500), 0o644); err != nil {
			t.Fatal(err)
		}
		cli(t, s.dir, nil, "serve", "--socket", nowhere, "--database", "sqlite:"+file).tells(t, 1, file, "not a database")
	})
	t.Run("a-wrong-flag", func(t *testing.T) {
		cli(t, s.dir, nil, "serve", "--colour").tells(t, 2, "--colour", "qsidecar serve --help")
	})
	t.Run("a-wrong-command", func(t *testing.T) {
		cli(t, s.dir, nil, "enqeue", "q", "x").tells(t, 2, "enqeue", "enqueue")
	})
	t.Run("an-unknown-config-key", func(t *testing.T) {
		file := filepath.Join(s.dir, "bad.yaml")
		if err := os.WriteFile(file, []byte("queues:\n  mail: {}\n  slow:\n    timeuot: 10m\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, verb := range []string{"serve", "check"} {
			cli(t, s.dir, nil, verb, "--config", file).tells(t, 2, file, "timeuot", "4")
		}
	})
	t.Run("a-password-in-the-command-line", func(t *testing.T) {
		r := cli(t, s.dir, nil, "serve", "--database", "postgres://app:hunter2@db/app")
		r.tells(t, 2, "QSIDECAR_DATABASE", "@")
		if strings.Contains(r.diag+r.out, "hunter2") {
			t.Error("it repeats the password")
		}
	})
	t.Run("what-destroys-wants-yes", func(t *testing.T) {
		a := s.started("purge")
		a.dial().enqueueN("q", 3)
		cli(t, s.dir, nil, "purge", "q", "--state", "ready", "--socket", a.socket).tells(t, 2, "--yes")
		if got := a.dial().stat("q").Ready; got != 3 {
			t.Errorf("%d of 3 jobs are left though nobody said yes", got)
		}
	})
}

// noPermission: a socket that this user may not connect to, and a database file
// that it may not open.
func noPermission(t *testing.T, s *site) {
	a := s.started("a")
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	if os.Geteuid() != 0 { // then one's own socket can be closed to oneself
		nobody = nil
		if err := os.Chmod(a.socket, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(s.file(), 0); err != nil {
			t.Fatal(err)
		}
	}
	cli(t, s.dir, nobody, "ping", "--socket", a.socket).tells(t, 1, a.socket, "permission", "mode")
	open := filepath.Join(s.dir, "open")
	if err := errors.Join(os.Mkdir(open, 0o777), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(open, "mine.sock")
	cli(t, s.dir, nobody, "serve", "--socket", mine, "--database", s.url).tells(t, 1, s.file())
}

// TestFullDisk: on a full disk nothing is lost, who enqueues is told, and with
// room again it goes on.
func TestFullDisk(t *testing.T) {
	s := newSite(t)
	disk := filepath.Join(s.dir, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	s.url = "sqlite:" + filepath.Join(disk, "q.db")
	a := s.sidecar("a")
	// A file system of its own, in a mount namespace of its own: nothing to clean up.
	unshare := "-m"
	if os.Geteuid() != 0 {
		unshare = "-Urm"
	}
	a.wrap = []string{"unshare", unshare, "sh", "-c", `mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@"`, disk}
	a.start()
	c := a.dial()
	kept := c.enqueueN("q", 10)

	inside := fmt.Sprintf("/proc/%d/root%s/filling", a.cmd.Process.Pid, disk)
	fill(t, inside)
	big := strings.Repeat("x", 1<<20)
	e := c.refused("unavailable", msg{"op": "enqueue", "queue": "q", "payload": big})
	if !strings.Contains(e.Message, "full") || e.RetryMS <= 0 {
		t.Errorf("a full disk is told as %+v, want the word full and retry_ms", e)
	}
	r := cliWith(t, s.dir, nil, big, "enqueue", "q", "-", "--socket", a.socket)
	r.tells(t, 5, "full")
	c.must(msg{"op": "ping"})

	if err := os.Remove(inside); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "it goes on when there is room", func() bool {
		return c.ask(msg{"op": "enqueue", "queue": "q", "payload": "room"}).Error == nil
	})
	if got := c.stat("q"); got.Ready != len(kept)+1 || got.total() != got.Ready {
		t.Errorf("the queue has %+v, want %d ready jobs", got, len(kept)+1)
	}
}

// fill writes a file until the disk is full.
func fill(t *testing.T, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatalf("the small file system: %v (it needs mount and unshare, and the right to use them)", err)
	}
	defer f.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{zeros{}}, make([]byte, 512))
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v after %d bytes", err, n)
	}
}

// zeros is an endless file of zeros.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
