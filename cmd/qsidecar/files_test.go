package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// oddFile is a file that a config or a secret must not be.
type oddFile struct {
	name    string
	make    func(path string) error
	message string // part of the error
}

var oddFiles = []oddFile{
	{"pipe", func(path string) error { return syscall.Mkfifo(path, 0o600) }, "is a pipe"},
	{"folder", func(path string) error { return os.Mkdir(path, 0o700) }, "is a folder"},
	{"socket", func(path string) error {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		ln.SetUnlinkOnClose(false)
		return ln.Close()
	}, "is a socket"},
	{"endless device", func(path string) error { return os.Symlink("/dev/zero", path) }, "is a device"},
	{"huge", func(path string) error {
		return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 16<<20+1))
	}, "has more than 16 MiB"},
}

// put replaces the path by the bad file.
func (o oddFile) put(t *testing.T, path string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(path), o.make(path)); err != nil {
		t.Fatal(err)
	}
}

// runToEnd is run with a time limit.
func (h *host) runToEnd(args ...string) result {
	h.t.Helper()
	r := h.start(strings.NewReader(""), args...)
	code := r.wait()
	return result{code, r.out.String(), r.errOut.String()}
}

func TestUnreadableConfigAtTheStart(t *testing.T) {
	h := newHost(t)
	file := filepath.Join(h.dir, "c.yaml")
	for _, bad := range oddFiles {
		bad.put(t, file)
		for _, command := range []string{"serve", "stdio", "check", "migrate"} {
			want := file + " " + bad.message
			if bad.name == "pipe" && (command == "check" || command == "migrate") {
				want = "nothing came through the pipe " + file
			}
			t.Run(bad.name+"/"+command, func(t *testing.T) {
				h.runToEnd(command, "--config", file).wantStderr(t, exitUsage, want, "name ")
				h.runToEnd(command, "--database", "@"+file).wantStderr(t, exitUsage, want, "name ")
			})
		}
	}
}

// TestUnreadableConfigAtAReload checks that the running config stays, and that the status shows the
// reason, until a valid config follows.
func TestUnreadableConfigAtAReload(t *testing.T) {
	for _, noEvents := range []bool{false, true} {
		x := startWatching(t, noEvents, one)
		for i, bad := range oddFiles {
			bad.put(t, x.file)
			testwait.Until(t, "status reports the "+bad.name, func() bool { return strings.Contains(x.status().ConfigError, bad.message) })
			x.runToEnd("reload").wantStderr(t, exitUsage, x.file+" "+bad.message, "what ran before goes on")
			x.must(0, "enqueue", "one", "x")
			if log := x.r.errOut.String(); !strings.Contains(log, "event=config_reload_failed") || !strings.Contains(log, bad.message) {
				t.Errorf("the log has no line about the %s:\n%s", bad.name, log)
			}
			if err := os.RemoveAll(x.file); err != nil {
				t.Fatal(err)
			}
			next := fmt.Sprintf("then-%d", i)
			x.write(x.file, "queues: {one: {}, "+next+": {}}\n")
			x.waitForQueue(next, true)
			testwait.Until(t, "status reports no error", func() bool { return x.status().ConfigError == "" })
		}
	}
}

// onServer returns a config with a database on which nothing listens.
func onServer(secret string) string {
	return "databases: {main: {url: 'postgres://app@127.0.0.1:1/app', password_file: " + secret + "}}\n" + one
}

// TestUnreadableSecret checks that serve exits at once if it can't read the password.
func TestUnreadableSecret(t *testing.T) {
	h := newHost(t)
	secret := filepath.Join(h.dir, "secret")
	file := h.file("c.yaml", onServer(secret))
	empty := func(path string) error { return os.WriteFile(path, []byte("\n"), 0o600) }
	for _, bad := range append(oddFiles, oddFile{"empty", empty, "is empty"}) {
		bad.put(t, secret)
		for _, command := range []string{"serve", "stdio", "check", "migrate"} {
			t.Run(bad.name+"/"+command, func(t *testing.T) {
				h.runToEnd(command, "--config", file).wantStderr(t, exitUsage, secret+" "+bad.message)
			})
		}
	}
}

// TestUnreadableSecretAtAReload checks a config that adds a server's database.
func TestUnreadableSecretAtAReload(t *testing.T) {
	x := startWatching(t, false, one)
	secret := filepath.Join(x.dir, "secret")
	for _, bad := range oddFiles {
		bad.put(t, secret)
		x.write(x.file, onServer(secret))
		x.runToEnd("reload").wantStderr(t, exitUsage, secret+" "+bad.message, "what ran before goes on")
		x.must(0, "enqueue", "one", "x")
		x.write(x.file, one)
		x.must(0, "reload")
	}
}

// TestUnreadableFiles checks files without read permission, at the start and later.
func TestUnreadableFiles(t *testing.T) {
	h := newHost(t)
	h.poll, h.noEvents = 20*time.Millisecond, true
	secret := h.file("secret", "x")
	x := &reloading{host: h, file: h.file("c.yaml", one)}
	server := h.file("server.yaml", onServer(secret))
	if os.Geteuid() == 0 {
		for _, path := range []string{h.dir, secret, x.file, server} {
			if err := os.Chown(path, 65534, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	asUnprivileged(t, func() {
		chmod := func(path string, mode os.FileMode) {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
		chmod(secret, 0)
		h.runToEnd("serve", "--config", server).wantStderr(t, exitUsage, secret, "permission denied")
		h.runToEnd("check", "--config", server).wantStderr(t, exitUsage, secret, "permission denied")
		chmod(server, 0)
		h.runToEnd("serve", "--config", server).wantStderr(t, exitUsage, server, "permission denied")

		x.r = h.serve("--config", x.file)
		chmod(x.file, 0)
		testwait.Until(t, "status reports the file", func() bool { return strings.Contains(x.status().ConfigError, "permission denied") })
		x.must(0, "enqueue", "one", "x")
		chmod(x.file, 0o600)
		testwait.Until(t, "status reports no error", func() bool { return x.status().ConfigError == "" })
		x.write(x.file, onServer(secret))
		x.runToEnd("reload").wantStderr(t, exitUsage, secret, "permission denied", "what ran before goes on")
		x.must(0, "enqueue", "one", "x")
		if code := x.r.stop(); code != 0 {
			t.Errorf("it ended with %d", code)
		}
	})
}

// pipeWith returns the path of a pipe that delivers a text, like a shell's <(…).
func pipeWith(t *testing.T, text string) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	go func() {
		_, _ = w.WriteString(text) // a text that is too long is not read to its end
		w.Close()
	}()
	return fmt.Sprintf("/proc/self/fd/%d", r.Fd())
}

// TestPipes checks that commands which read their config once accept a pipe, and that the
// others explain why not.
func TestPipes(t *testing.T) {
	h := newHost(t)
	url := "sqlite:" + filepath.Join(h.dir, "q.db")
	config := "databases: {main: {url: '" + url + "'}}\n"
	h.runToEnd("migrate", "--config", pipeWith(t, config)).wantStdout(t, 0, "up to date")
	h.runToEnd("check", "--config", pipeWith(t, config)).wantStdout(t, 0, ": ok\n", filepath.Join(h.dir, "q.db"))
	h.runToEnd("check", "--database", "@"+pipeWith(t, url+"\n")).wantStdout(t, 0, filepath.Join(h.dir, "q.db"))
	for _, command := range []string{"serve", "stdio"} {
		h.runToEnd(command, "--config", pipeWith(t, config)).wantStderr(t, exitUsage, "is a pipe, which cannot be read again")
		h.runToEnd(command, "--database", "@"+pipeWith(t, url)).wantStderr(t, exitUsage, "is a pipe, which cannot be read again")
	}
	// All errors are reported and the databases are examined, although the pipe can be read
	// only once.
	r := h.runToEnd("check", "--config", pipeWith(t, config+"max_frame: 1KiB\nlog: {level: loud}\n"))
	r.wantStderr(t, exitUsage, "max_frame", "level")
	r.wantStdout(t, exitUsage, "database main: sqlite")
	h.runToEnd("check", "--config", pipeWith(t, "")).wantStderr(t, exitUsage, "nothing came through the pipe")
	h.runToEnd("check", "--config", pipeWith(t, strings.Repeat("#\n", 8<<20+1))).wantStderr(t, exitUsage, "has more than 16 MiB")
}

// TestConfigIsDevNull checks that /dev/null is an empty config at the start, and an error at a
// reload.
func TestConfigIsDevNull(t *testing.T) {
	h := newHost(t)
	r := h.serve("--config", "/dev/null")
	h.must(0, "enqueue", "any", "x")
	if code := r.stop(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	h.runToEnd("check", "--config", "/dev/null").wantStdout(t, 0, "config /dev/null: ok")
	h.runToEnd("serve", "--config", h.file("c.yaml", onServer("/dev/null"))).wantStderr(t, exitUsage, "/dev/null is empty")

	x := startWatching(t, false, one)
	if err := os.Remove(x.file); err != nil {
		t.Fatal(err)
	}
	x.link("/dev/null", x.file)
	testwait.Until(t, "status reports it", func() bool { return strings.Contains(x.status().ConfigError, "the config file is empty") })
	x.must(0, "enqueue", "one", "x")
}
