package journeys

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestMessages checks that errors of the command line report what failed, where, and what to do.
func TestMessages(t *testing.T) {
	s := kit.NewSite(t)
	nowhere := filepath.Join(s.Dir, "nowhere.sock")
	t.Run("no-socket", func(t *testing.T) {
		for _, args := range [][]string{{"ping"}, {"enqueue", "q", "x"}, {"claim", "q"}, {"stats"}} {
			kit.RunCLI(t, s.Dir, nil, append(args, "--socket", nowhere)...).WantError(t, 5, nowhere, "qsidecar serve")
		}
	})
	t.Run("a-stale-socket", func(t *testing.T) {
		a := s.Start("stale")
		a.Kill()
		kit.RunCLI(t, s.Dir, nil, "ping", "--socket", a.Socket).WantError(t, 5, a.Socket, "qsidecar serve")
	})
	t.Run("no-permission", func(t *testing.T) { noPermission(t, kit.NewSite(t)) })
	t.Run("the-database-is-a-directory", func(t *testing.T) {
		kit.RunCLI(t, s.Dir, nil, "serve", "--socket", nowhere, "--database", "sqlite:"+s.Dir).WantError(t, 1, s.Dir)
	})
	t.Run("the-database-is-no-database", func(t *testing.T) {
		file := filepath.Join(s.Dir, "letter.txt")
		if err := os.WriteFile(file, bytes.Repeat([]byte("Dear Sir or Madam\n"), 500), 0o644); err != nil {
			t.Fatal(err)
		}
		kit.RunCLI(t, s.Dir, nil, "serve", "--socket", nowhere, "--database", "sqlite:"+file).WantError(t, 1, file, "not a database")
	})
	t.Run("a-wrong-flag", func(t *testing.T) {
		kit.RunCLI(t, s.Dir, nil, "serve", "--colour").WantError(t, 2, "--colour", "qsidecar serve --help")
	})
	t.Run("a-wrong-command", func(t *testing.T) {
		kit.RunCLI(t, s.Dir, nil, "enqeue", "q", "x").WantError(t, 2, "enqeue", "enqueue")
	})
	t.Run("an-unknown-config-key", func(t *testing.T) {
		file := filepath.Join(s.Dir, "bad.yaml")
		if err := os.WriteFile(file, []byte("queues:\n  mail: {}\n  slow:\n    timeuot: 10m\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, verb := range []string{"serve", "check"} {
			kit.RunCLI(t, s.Dir, nil, verb, "--config", file).WantError(t, 2, file, "timeuot", "4")
		}
	})
	t.Run("a-password-in-the-command-line", func(t *testing.T) {
		r := kit.RunCLI(t, s.Dir, nil, "serve", "--database", "postgres://app:hunter2@db/app")
		r.WantError(t, 2, "QSIDECAR_DATABASE", "@")
		if strings.Contains(r.Stderr+r.Stdout, "hunter2") {
			t.Error("it repeats the password")
		}
	})
	t.Run("destructive-commands-need-yes", func(t *testing.T) {
		a := s.Start("purge")
		a.Dial().Enqueue("q", 3)
		kit.RunCLI(t, s.Dir, nil, "purge", "q", "--state", "ready", "--socket", a.Socket).WantError(t, 2, "--yes")
		if got := a.Dial().Stats("q").Ready; got != 3 {
			t.Errorf("%d of 3 jobs are left without a confirmation", got)
		}
	})
}

// noPermission checks a socket and a database file that this user can't open.
func noPermission(t *testing.T, s *kit.Site) {
	a := s.Start("a")
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	if os.Geteuid() != 0 { // a user's own socket can be closed to the user too
		nobody = nil
		if err := os.Chmod(a.Socket, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(s.File(), 0); err != nil {
			t.Fatal(err)
		}
	}
	kit.RunCLI(t, s.Dir, nobody, "ping", "--socket", a.Socket).WantError(t, 1, a.Socket, "permission", "mode")
	open := filepath.Join(s.Dir, "open")
	if err := errors.Join(os.Mkdir(open, 0o777), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(open, "mine.sock")
	kit.RunCLI(t, s.Dir, nobody, "serve", "--socket", mine, "--database", s.URL).WantError(t, 1, s.File())
}
