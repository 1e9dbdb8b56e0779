package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestInvalidSecretFiles puts other things in place of the password file of a database in use. None
// of them blocks the sidecar or is accepted, not even an empty file by a server that needs no
// password. The next valid password is accepted.
func TestInvalidSecretFiles(t *testing.T) {
	t.Parallel()
	s, srv := kit.NewPostgresSite(t)
	r := &reloadRun{t: t, s: s, srv: srv, queues: map[string]bool{}, pool: 8, attempts: 20, secret: filepath.Join(s.Dir, "secret")}
	r.passwords()
	r.a = s.Sidecar("a")
	r.write(r.text()) // on the socket, where the server trusts every user
	r.a.Start()
	r.admin = r.a.Dial()
	r.generation = r.status().Generation
	for _, odd := range []struct {
		says string
		make func() error
	}{
		{"is empty", func() error { return os.WriteFile(r.secret, []byte("\n"), 0o600) }},
		{"is a pipe", func() error { return syscall.Mkfifo(r.secret, 0o600) }},
		{"is a folder", func() error { return os.Mkdir(r.secret, 0o700) }},
		{"is a device", func() error { return os.Symlink("/dev/zero", r.secret) }},
		{"no such file", func() error { return nil }},
	} {
		if err := errors.Join(os.RemoveAll(r.secret), odd.make()); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "status reports that the secret "+odd.says, func() bool {
			return strings.Contains(r.status().ConfigError, odd.says)
		})
		r.refused()
		r.admin.Must(kit.Msg{"op": "enqueue", "queue": "work", "payload": odd.says})
		if got := r.admin.ClaimOne("work"); got.Payload != odd.says {
			t.Errorf("claimed %q, want %q", got.Payload, odd.says)
		}
		if err := os.RemoveAll(r.secret); err != nil {
			t.Fatal(err)
		}
		r.byTCP = !r.byTCP
		r.rotate()
		r.changed()
	}
}
