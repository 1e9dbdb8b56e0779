package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// twin is another sidecar on the same socket.
func (sc *sidecar) twin(s *site, name string) *sidecar {
	sc.t.Helper()
	other := s.sidecar(name)
	other.socket, other.config = sc.socket, sc.config
	return other
}

// TestTwoSidecarsOnOneSocket: the second says who has it, and the first works on. Where that one
// is killed the next begins at once.
func TestTwoSidecarsOnOneSocket(t *testing.T) {
	s := newSite(t)
	first := s.started("a")
	second := first.twin(s, "b")
	second.launch()
	if code := second.exit(patience); code != 1 {
		t.Errorf("the second exited with %d, want 1", code)
	}
	if want := fmt.Sprintf("socket %s: another sidecar (pid %d) serves it", first.socket, first.cmd.Process.Pid); !strings.Contains(second.readLog(), want) {
		t.Errorf("the second does not say %q:\n%s", want, second.readLog())
	}
	first.dial().must(msg{"op": "ping"})

	for range 3 {
		first.kill()
		if _, err := os.Lstat(first.socket); err != nil {
			t.Fatalf("a killed sidecar leaves its socket: %v", err)
		}
		first.start()
	}
	first.signal(syscall.SIGTERM)
	if code := first.exit(patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(first.socket); err == nil {
		t.Error("the socket is still there after an orderly exit")
	}
}

// stranger is a user of no rights, to whom things belong that are not the sidecar's.
var stranger = person{uid: 4242, gid: 4343}

// do runs a command as root, or fails the test.
func do(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := testserver.AsRoot(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s(this test needs root, or sudo without a password)", name, strings.Join(args, " "), err, out)
	}
}

// place is where a socket cannot be: what is there, and what the sidecar says of it.
type place struct {
	put     func(t *testing.T, socket string)
	words   string
	foreign bool // a sidecar of another user could serve there
}

var places = map[string]place{
	"a folder that everybody can write": {func(t *testing.T, socket string) {
		do(t, "chmod", "0777", filepath.Dir(socket))
	}, "every user can write the folder", false},
	"a folder that a group can write": {func(t *testing.T, socket string) {
		do(t, "chgrp", "4343", filepath.Dir(socket))
		do(t, "chmod", "0770", filepath.Dir(socket))
	}, "the group 4343 can write the folder", false},
	"somebody else's folder": {func(t *testing.T, socket string) {
		do(t, "chmod", "0755", filepath.Dir(socket))
		do(t, "chown", "4242", filepath.Dir(socket))
	}, "belongs to user 4242", true},
	"somebody else's sticky folder": {func(t *testing.T, socket string) {
		do(t, "chmod", "1777", filepath.Dir(socket))
		do(t, "chown", "4242", filepath.Dir(socket))
	}, "belongs to user 4242", true},
	"somebody's socket in a sticky folder": {func(t *testing.T, socket string) {
		do(t, "chmod", "1777", filepath.Dir(socket))
		do(t, "python3", "-c", "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])", socket)
		do(t, "chown", "4242", socket)
	}, "a socket of user 4242 is in the way", true},
	"somebody's file as the lock": {func(t *testing.T, socket string) {
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
	}, "a file that is no socket is in the way", false},
	"a folder in its place": {func(t *testing.T, socket string) {
		do(t, "mkdir", socket)
	}, "a file that is no socket is in the way", false},
}

// TestSocketPlaces: where a socket is not safe, or the place is taken, a sidecar neither starts
// there nor goes there by a reload, says why, and leaves what is there as it is.
func TestSocketPlaces(t *testing.T) {
	s := newSite(t)
	running := s.started("running")
	admin := running.dial()
	good, err := os.ReadFile(running.config)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for name, place := range places {
		n++
		dir := filepath.Join(s.dir, fmt.Sprint(n))
		socket := filepath.Join(dir, "q.sock")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		place.put(t, socket)
		before := listing(t, dir)

		sc := s.sidecar(fmt.Sprint("s", n))
		if err := os.WriteFile(sc.config, []byte(strings.Replace(string(good), running.socket, socket, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		place.isTold(t, sc, name, socket)
		sc.launch()
		if code := sc.exit(patience); code != 1 || !strings.Contains(sc.readLog(), "socket "+socket+": ") || !strings.Contains(sc.readLog(), place.words) {
			t.Errorf("%s: exit code %d, want 1, and %q in:\n%s", name, code, place.words, sc.readLog())
		}

		two := strings.Replace(string(good), "listen:\n", fmt.Sprintf("listen:\n  - socket: %s\n  - socket: %s\n", filepath.Join(s.dir, "new.sock"), socket), 1)
		if err := os.WriteFile(running.config, []byte(two), 0o644); err != nil {
			t.Fatal(err)
		}
		if e := admin.refused("bad_request", msg{"op": "reload"}); !strings.Contains(e.Message, place.words) {
			t.Errorf("%s: a reload says %q, want %q", name, e.Message, place.words)
		}
		if _, err := os.Lstat(filepath.Join(s.dir, "new.sock")); err == nil {
			t.Errorf("%s: the other socket of a reload that was refused is there", name)
		}
		if after := listing(t, dir); after != before {
			t.Errorf("%s: before\n%safter\n%s", name, before, after)
		}
	}
	if err := os.WriteFile(running.config, good, 0o644); err != nil {
		t.Fatal(err)
	}
	admin.must(msg{"op": "reload"})
	if t.Failed() {
		return
	}
	if err := testserver.RanAsRoot("socket places", fmt.Sprintf("%d of other users, links and files, each refused at a start and by a reload", len(places))); err != nil {
		t.Fatal(err)
	}
}

// isTold: check says what serve will say of the socket's place, and of the same place of the admin's.
func (p place) isTold(t *testing.T, sc *sidecar, name, socket string) {
	t.Helper()
	code, grade := 1, "problem"
	if p.foreign {
		code, grade = 0, "advice"
	}
	config := sc.text()
	for _, text := range []string{config, strings.Replace(config, "socket: "+socket, "socket: "+filepath.Join(filepath.Dir(sc.config), "elsewhere.sock"), 1) + "admin: {listen: " + socket + "}\n"} {
		sc.rewrite(text)
		found := sc.checked(filepath.Dir(sc.config), code, "--json").found(t, grade)["socket"]
		if !strings.HasPrefix(found, socket+": ") || !strings.Contains(found, p.words) {
			t.Errorf("%s: check says %q, want %q", name, found, p.words)
		}
	}
	sc.rewrite(config)
	if said := sc.checked(filepath.Dir(sc.config), code); !strings.Contains(said.out, p.words) || !strings.Contains(said.out, "\n  "+grade) {
		t.Errorf("%s: check shows\n%s", name, said.out)
	}
}

// listing is all that a folder has, and of whom.
func listing(t *testing.T, dir string) string {
	t.Helper()
	out, err := testserver.AsRoot(t.Context(), "ls", "-lain", "--time-style=full-iso", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(out), "\n")
	return strings.Join(append(lines[:1:1], lines[3:]...), "") // without . and .., whose times may change
}

// TestStickyFolder: /tmp will do. What somebody puts there later does not harm.
func TestStickyFolder(t *testing.T) {
	s := newSite(t)
	dir := filepath.Join(s.dir, "tmp")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	do(t, "chown", "0", dir)
	do(t, "chmod", "1777", dir)
	sc := s.sidecar("a")
	text, err := os.ReadFile(sc.config)
	if err != nil {
		t.Fatal(err)
	}
	was := sc.socket
	sc.socket = filepath.Join(dir, "q.sock")
	if err := os.WriteFile(sc.config, []byte(strings.Replace(string(text), was, sc.socket, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	sc.start()
	for _, args := range [][]string{{"rm", "-f", sc.socket}, {"rm", "-f", sc.socket + ".lock"}, {"ln", "-sf", "/etc/passwd", sc.socket}, {"flock", "-n", sc.socket + ".lock", "true"}} {
		set := []string{"--reuid", fmt.Sprint(stranger.uid), "--regid", fmt.Sprint(stranger.gid), "--clear-groups"}
		if out, err := testserver.AsRoot(t.Context(), "setpriv", append(set, args...)...).CombinedOutput(); err == nil {
			t.Errorf("%v as another user succeeded: %s", args, out)
		}
	}
	sc.dial().must(msg{"op": "ping"})
	sc.kill()
	sc.start()
}
