package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestRootServesInNoOtherUsersDirectory checks that root's socket is not in a runtime directory that
// another user owns, nor in one that would be created below such a directory.
func TestRootServesInNoOtherUsersDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it is about root")
	}
	dir := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	if err := errors.Join(os.MkdirAll(at("own", "qsidecar"), 0o755), os.MkdirAll(at("user"), 0o700), os.MkdirAll(at("mixed", "qsidecar"), 0o755),
		os.Chown(at("user"), 65534, -1), os.Chown(at("mixed", "qsidecar"), 65534, -1)); err != nil {
		t.Fatal(err)
	}
	system := at("system", "qsidecar.sock")
	for run, want := range map[string]string{
		"":                system,
		at("own"):         at("own", "qsidecar", "qsidecar.sock"),
		at("none", "new"): at("none", "new", "qsidecar", "qsidecar.sock"),
		at("user"):        system,
		at("user", "new"): system,
		at("mixed"):       system,
	} {
		in := Input{Database: "sqlite:x.db", SystemSocket: system, Env: func(name string) (string, bool) {
			if name != "XDG_RUNTIME_DIR" {
				return "", false
			}
			return run, true
		}}
		c, err := in.Load()
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Listen[0].Socket; got != want {
			t.Errorf("with XDG_RUNTIME_DIR=%s root serves %s, want %s", run, got, want)
		}
		if got := in.Sockets()[0]; got != want {
			t.Errorf("with XDG_RUNTIME_DIR=%s root's commands try %s first, want %s", run, got, want)
		}
	}
}
