package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// secondSidecar returns another sidecar on the same socket.
func secondSidecar(sc *kit.Sidecar, s *kit.Site, name string) *kit.Sidecar {
	sc.T.Helper()
	other := s.Sidecar(name)
	other.Socket, other.ConfigFile = sc.Socket, sc.ConfigFile
	return other
}

// TestTwoSidecarsOnOneSocket checks that the second one names the first, and the first continues.
// When the first is killed, the next one starts at once.
func TestTwoSidecarsOnOneSocket(t *testing.T) {
	s := kit.NewSite(t)
	first := s.Start("a")
	second := secondSidecar(first, s, "b")
	second.Launch()
	if code := second.WaitExit(); code != 1 {
		t.Errorf("the second exited with %d, want 1", code)
	}
	if want := fmt.Sprintf("socket %s: another sidecar (pid %d) serves it", first.Socket, first.Cmd.Process.Pid); !strings.Contains(second.Log(), want) {
		t.Errorf("the second does not say %q:\n%s", want, second.Log())
	}
	first.Dial().Must(kit.Msg{"op": "ping"})

	for range 3 {
		first.Kill()
		if _, err := os.Lstat(first.Socket); err != nil {
			t.Fatalf("a killed sidecar leaves its socket: %v", err)
		}
		first.Start()
	}
	first.Signal(syscall.SIGTERM)
	if code := first.WaitExit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(first.Socket); err == nil {
		t.Error("the socket is still there after an orderly exit")
	}
}

// stranger is a user without rights, which owns files that are not the sidecar's.
var stranger = kit.SystemUser{UID: 4242, GID: 4343}

// do runs a command as root, or fails the test.
func do(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := local.AsRoot(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s(this test needs root, or sudo without a password)", name, strings.Join(args, " "), err, out)
	}
}

// badPath is a path that a socket can't use: what exists there, and the sidecar's error.
type badPath struct {
	put     func(t *testing.T, socket string)
	words   string
	foreign bool // a sidecar of another user could serve there
}

var places = map[string]badPath{
	"a folder that everybody can write": {func(t *testing.T, socket string) {
		do(t, "chmod", "0777", filepath.Dir(socket))
	}, "every user can write the folder", false},
	"a folder that a group can write": {func(t *testing.T, socket string) {
		do(t, "chgrp", "4343", filepath.Dir(socket))
		do(t, "chmod", "0770", filepath.Dir(socket))
	}, "the group 4343 can write the folder", false},
	"another user's directory": {func(t *testing.T, socket string) {
		do(t, "chmod", "0755", filepath.Dir(socket))
		do(t, "chown", "4242", filepath.Dir(socket))
	}, "belongs to user 4242", true},
	"another user's sticky directory": {func(t *testing.T, socket string) {
		do(t, "chmod", "1777", filepath.Dir(socket))
		do(t, "chown", "4242", filepath.Dir(socket))
	}, "belongs to user 4242", true},
	"another user's socket in a sticky directory": {func(t *testing.T, socket string) {
		do(t, "chmod", "1777", filepath.Dir(socket))
		do(t, "python3", "-c", "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])", socket)
		do(t, "chown", "4242", socket)
	}, "a socket of user 4242 is in the way", true},
	"another user's file as the lock": {func(t *testing.T, socket string) {
		do(t, "chmod", "1777", filepath.Dir(socket))
		do(t, "touch", socket+".lock")
		do(t, "chown", "4242", socket+".lock")
	}, "belongs to user 4242", true},
	"a link as the lock": {func(t *testing.T, socket string) {
		do(t, "ln", "-s", "/etc/passwd", socket+".lock")
	}, "a symbolic link is in the way of its lock file", false},
	"a link to a socket": {func(t *testing.T, socket string) {
		do(t, "ln", "-s", "/elsewhere/q.sock", socket)
	}, "a symbolic link is in the way", false},
	"a file": {func(t *testing.T, socket string) {
		do(t, "touch", socket)
	}, "a file that isn't a socket is in the way", false},
	"a folder in its place": {func(t *testing.T, socket string) {
		do(t, "mkdir", socket)
	}, "a file that isn't a socket is in the way", false},
}

// TestInvalidSocketPaths checks unsafe and occupied socket paths. A sidecar neither starts there nor
// moves there by a reload, reports why, and leaves the path unchanged.
func TestInvalidSocketPaths(t *testing.T) {
	s := kit.NewSite(t)
	running := s.Start("running")
	admin := running.Dial()
	good, err := os.ReadFile(running.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for name, place := range places {
		n++
		dir := filepath.Join(s.Dir, fmt.Sprint(n))
		socket := filepath.Join(dir, "q.sock")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		place.put(t, socket)
		before := listing(t, dir)

		sc := s.Sidecar(fmt.Sprint("s", n))
		if err := os.WriteFile(sc.ConfigFile, []byte(strings.Replace(string(good), running.Socket, socket, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		place.checkReports(t, sc, name, socket)
		sc.Launch()
		if code := sc.WaitExit(); code != 1 || !strings.Contains(sc.Log(), "socket "+socket+": ") || !strings.Contains(sc.Log(), place.words) {
			t.Errorf("%s: exit code %d, want 1, and %q in:\n%s", name, code, place.words, sc.Log())
		}

		two := strings.Replace(string(good), "listen:\n", fmt.Sprintf("listen:\n  - socket: %s\n  - socket: %s\n", filepath.Join(s.Dir, "new.sock"), socket), 1)
		if err := os.WriteFile(running.ConfigFile, []byte(two), 0o644); err != nil {
			t.Fatal(err)
		}
		if e := admin.MustFail("bad_request", kit.Msg{"op": "reload"}); !strings.Contains(e.Message, place.words) {
			t.Errorf("%s: a reload reports %q, want %q", name, e.Message, place.words)
		}
		if _, err := os.Lstat(filepath.Join(s.Dir, "new.sock")); err == nil {
			t.Errorf("%s: the other socket of a reload that was refused is there", name)
		}
		if after := listing(t, dir); after != before {
			t.Errorf("%s: before\n%safter\n%s", name, before, after)
		}
	}
	if err := os.WriteFile(running.ConfigFile, good, 0o644); err != nil {
		t.Fatal(err)
	}
	admin.Must(kit.Msg{"op": "reload"})
	if t.Failed() {
		return
	}
	if err := local.RanAsRoot("socket places", fmt.Sprintf("%d of other users, links and files, each refused at a start and by a reload", len(places))); err != nil {
		t.Fatal(err)
	}
}

// checkReports checks that check reports what serve will report about the socket's path, and about the
// same path of the admin listener.
func (b badPath) checkReports(t *testing.T, sc *kit.Sidecar, name, socket string) {
	t.Helper()
	code, severity := 1, "error"
	if b.foreign {
		code, severity = 0, "warning"
	}
	config := sc.ReadConfig()
	for _, text := range []string{config, strings.Replace(config, "socket: "+socket, "socket: "+filepath.Join(filepath.Dir(sc.ConfigFile), "elsewhere.sock"), 1) + "admin: {listen: " + socket + "}\n"} {
		sc.WriteConfig(text)
		found := sc.Check(filepath.Dir(sc.ConfigFile), code, "--json").Problems(t, severity)["socket"]
		if !strings.HasPrefix(found, socket+": ") || !strings.Contains(found, b.words) {
			t.Errorf("%s: check reports %q, want %q", name, found, b.words)
		}
	}
	sc.WriteConfig(config)
	if output := sc.Check(filepath.Dir(sc.ConfigFile), code); !strings.Contains(output.Stdout, b.words) || !strings.Contains(output.Stdout, "\n  "+severity) {
		t.Errorf("%s: check shows\n%s", name, output.Stdout)
	}
}

// listing returns all files of a directory with their owners.
func listing(t *testing.T, dir string) string {
	t.Helper()
	out, err := local.AsRoot(t.Context(), "ls", "-lain", "--time-style=full-iso", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(out), "\n")
	return strings.Join(append(lines[:1:1], lines[3:]...), "") // without . and .., whose times can change
}

// TestSocketInTmp checks that /tmp can be used. What another user puts there later has no effect.
func TestSocketInTmp(t *testing.T) {
	s := kit.NewSite(t)
	dir := filepath.Join(s.Dir, "tmp")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	do(t, "chown", "0", dir)
	do(t, "chmod", "1777", dir)
	sc := s.Sidecar("a")
	text, err := os.ReadFile(sc.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	was := sc.Socket
	sc.Socket = filepath.Join(dir, "q.sock")
	if err := os.WriteFile(sc.ConfigFile, []byte(strings.Replace(string(text), was, sc.Socket, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	sc.Start()
	for _, args := range [][]string{{"rm", "-f", sc.Socket}, {"rm", "-f", sc.Socket + ".lock"}, {"ln", "-sf", "/etc/passwd", sc.Socket}, {"flock", "-n", sc.Socket + ".lock", "true"}} {
		set := []string{"--reuid", fmt.Sprint(stranger.UID), "--regid", fmt.Sprint(stranger.GID), "--clear-groups"}
		if out, err := local.AsRoot(t.Context(), "setpriv", append(set, args...)...).CombinedOutput(); err == nil {
			t.Errorf("%v as another user succeeded: %s", args, out)
		}
	}
	sc.Dial().Must(kit.Msg{"op": "ping"})
	sc.Kill()
	sc.Start()
}
