package unixsocket

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// shortDir is a temporary directory whose names fit a socket's path.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "qs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// listens requires a socket at the path that accepts connections and is gone after Close.
func listens(t *testing.T, path string) {
	t.Helper()
	ln, err := Listen(Config{Path: path, Mode: 0o660})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(conn.Close(), ln.Close()); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
}

// refusesToListen requires an error that contains each of `words`.
func refusesToListen(t *testing.T, path string, words ...string) {
	t.Helper()
	ln, err := Listen(Config{Path: path, Mode: 0o660})
	if err == nil {
		ln.Close()
		t.Fatal("it listens")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not contain %q", err, w)
		}
	}
}

// leaveStale leaves a socket on which no process answers, as a killed process does.
func leaveStale(t *testing.T, path string) {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// read is what stands in a file; empty: there is none.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(shortDir(t), "q.sock")
	leaveStale(t, path)
	write(t, path+".lock", "4194305\n") // as a sidecar that was killed left it
	listens(t, path)
}

// TestStopRemovesOwnFiles: a sidecar that ended in order leaves nothing that is its own.
func TestStopRemovesOwnFiles(t *testing.T) {
	path := filepath.Join(shortDir(t), "q.sock")
	ln, err := Listen(Config{Path: path, Mode: 0o660})
	if err != nil {
		t.Fatal(err)
	}
	if read(t, path+".lock") == "" {
		t.Error("the lock file does not name the process that serves the socket")
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if text := read(t, path+".lock"); text != "" {
		t.Errorf("after an orderly end the lock file still contains %q", text)
	}
	leaveStale(t, path) // another program's, then
	refusesToListen(t, path, "lock file has no sign", "remove it")
	refusesToListen(t, path, "lock file has no sign", "remove it") // and asking again does not make it ours
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the other program's socket: %v", err)
	}
}

func TestForeignFilesAreKept(t *testing.T) {
	for name, c := range map[string]struct {
		put   func(t *testing.T, path string) (still func() bool) // puts something at the path or beside it
		words []string
	}{
		"file": {func(t *testing.T, path string) func() bool {
			write(t, path, "precious")
			return func() bool { return read(t, path) == "precious" }
		}, []string{"isn't a socket", "--socket"}},
		"symlink": {func(t *testing.T, path string) func() bool {
			return linked(t, "elsewhere", path)
		}, []string{"symbolic link"}},
		"symlink as the lock": {func(t *testing.T, path string) func() bool {
			target := filepath.Join(shortDir(t), "precious")
			write(t, target, "precious")
			still := linked(t, target, path+".lock")
			return func() bool { return still() && read(t, target) == "precious" }
		}, []string{"symbolic link", ".lock"}},
		"dangling symlink as the lock": {func(t *testing.T, path string) func() bool {
			target := filepath.Join(shortDir(t), "nothing")
			still := linked(t, target, path+".lock")
			return func() bool { return still() && read(t, target) == "" }
		}, []string{"symbolic link", ".lock"}},
		"hard link as the lock": {func(t *testing.T, path string) func() bool {
			target := filepath.Join(filepath.Dir(path), "precious")
			write(t, target, "precious")
			if err := os.Link(target, path+".lock"); err != nil {
				t.Fatal(err)
			}
			return func() bool { return read(t, target) == "precious" }
		}, []string{"2 names", ".lock"}},
		"pipe as the lock": {func(t *testing.T, path string) func() bool {
			if err := syscall.Mkfifo(path+".lock", 0o600); err != nil {
				t.Fatal(err)
			}
			return func() bool {
				info, err := os.Lstat(path + ".lock")
				return err == nil && info.Mode()&fs.ModeNamedPipe != 0
			}
		}, []string{"isn't a file", ".lock"}},
		"another program's socket": {func(t *testing.T, path string) func() bool {
			foreign, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = foreign.Close() }) // gone with the folder too
			return func() bool { _, err := os.Lstat(path); return err == nil }
		}, []string{"another program (pid ", "answers"}},
		"another program's silent socket": {func(t *testing.T, path string) func() bool {
			leaveStale(t, path)
			return func() bool { _, err := os.Lstat(path); return err == nil }
		}, []string{"no process answers", "remove it"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(shortDir(t), "q.sock")
			still := c.put(t, path)
			refusesToListen(t, path, c.words...)
			if !still() {
				t.Error("what was there is not as it was")
			}
		})
	}
}

func linked(t *testing.T, target, at string) (still func() bool) {
	t.Helper()
	if err := os.Symlink(target, at); err != nil {
		t.Fatal(err)
	}
	return func() bool { got, err := os.Readlink(at); return err == nil && got == target }
}

func TestLongSocketPathIsRefused(t *testing.T) {
	refusesToListen(t, filepath.Join(shortDir(t), strings.Repeat("x", 120)), "bytes", "107", "shorter")
}

// TestDirectoryOfASocket: a folder is permitted only if no other user than root and this one can
// replace the socket. Folders of other users are in the end-to-end tests: those need root.
func TestDirectoryOfASocket(t *testing.T) {
	for mode, words := range map[fs.FileMode][]string{
		0o700:                                 nil,
		0o755:                                 nil,
		0o711:                                 nil,
		fs.ModeSticky | 0o777:                 nil, // as /tmp
		fs.ModeSticky | fs.ModeSetgid | 0o770: nil,
		0o777:                                 {"every user can write", "chmod o-w"},
		0o702:                                 {"every user can write", "chmod o-w"},
		fs.ModeSetgid | 0o777:                 {"every user can write"}, // as a Kubernetes emptyDir
		0o775:                                 {"the group", "chmod g-w"},
		0o770:                                 {"the group", "the socket's own mode and group"},
	} {
		t.Run(mode.String(), func(t *testing.T) {
			dir := shortDir(t)
			path := filepath.Join(dir, "q.sock")
			gid := otherGroup(t)
			if err := errors.Join(os.Chown(dir, -1, gid), os.Chmod(dir, mode)); err != nil {
				t.Fatal(err)
			}
			if words != nil && !(mode&0o002 == 0 && privateGroup(gid)) {
				refusesToListen(t, path, append(words, dir)...)
				return
			}
			listens(t, path)
		})
	}
}

// otherGroup returns a group that this process is permitted to give files to. If the process is in
// several groups, it isn't the process's own.
func otherGroup(t *testing.T) int {
	t.Helper()
	if os.Geteuid() == 0 {
		return 4343
	}
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(groups, func(g int) bool { return g != os.Getegid() && g != 0 }); i >= 0 {
		return groups[i]
	}
	return os.Getegid()
}

// TestDeepSocketPath: the path fits, its temporary name would not.
func TestDeepSocketPath(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, strings.Repeat("x", MaxPath-len(dir)-1))
	listens(t, path)
}
