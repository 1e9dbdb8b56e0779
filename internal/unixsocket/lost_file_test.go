package unixsocket

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// guarded is a Listener whose file the test checks by itself, and its log.
type guarded struct {
	*Listener
	log *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

// events returns the events that were logged.
func (g *guarded) events() (all []string) {
	g.log.mu.Lock()
	defer g.log.mu.Unlock()
	for line := range strings.Lines(g.log.String()) {
		_, rest, _ := strings.Cut(line, "event=")
		event, _, _ := strings.Cut(rest, " ")
		all = append(all, event)
	}
	return all
}

func listenGuarded(t *testing.T, path string) *guarded {
	t.Helper()
	g := &guarded{log: &lockedBuffer{}}
	ln, err := Listen(Config{Path: path, Mode: 0o640, Log: slog.New(slog.NewTextHandler(g.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	g.Listener = ln
	t.Cleanup(func() {
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// serves fails the test unless a connection to the path reaches the listener.
func (g *guarded) serves(t *testing.T) {
	t.Helper()
	conn, err := net.Dial("unix", g.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := g.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := got.Close(); err != nil {
		t.Error(err)
	}
	info, err := os.Lstat(g.Path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != fs.ModeSocket|0o640 {
		t.Errorf("the file has the mode %v, want a socket of 0640", info.Mode())
	}
	if err := g.Lost(); err != nil {
		t.Errorf("Lost: %v", err)
	}
	if now, err := os.Stat(g.Path + ".lock"); err != nil || !sameLock(now, g.lock) {
		t.Errorf("the lock file isn't the listener's: %v", err)
	}
	if _, err := lockSocket(g.Path); err == nil || !strings.Contains(err.Error(), "another sidecar (pid ") {
		t.Errorf("a second sidecar's lock: %v", err)
	}
}

func sameLock(now fs.FileInfo, lock *os.File) bool {
	own, err := lock.Stat()
	return err == nil && os.SameFile(now, own)
}

func do(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestLostFileIsBoundAgain removes and replaces the socket's files in all ways that leave nothing of another program.
func TestLostFileIsBoundAgain(t *testing.T) {
	for name, c := range map[string]struct {
		lose  func(t *testing.T, g *guarded)
		quiet bool // the socket's file stays
	}{
		"removed":      {func(t *testing.T, g *guarded) { do(t, os.Remove(g.Path)) }, false},
		"renamed":      {func(t *testing.T, g *guarded) { do(t, os.Rename(g.Path, g.Path+".old")) }, false},
		"lock removed": {func(t *testing.T, g *guarded) { do(t, os.Remove(g.Path+".lock")) }, true},
		"lock replaced": {func(t *testing.T, g *guarded) {
			write(t, g.Path+".new", "")
			do(t, os.Rename(g.Path+".new", g.Path+".lock"))
		}, true},
		"socket and lock": {func(t *testing.T, g *guarded) { do(t, os.Remove(g.Path), os.Remove(g.Path+".lock")) }, false},
		"folder removed":  {func(t *testing.T, g *guarded) { do(t, os.RemoveAll(filepath.Dir(g.Path))) }, false},
		"folder made again": {func(t *testing.T, g *guarded) {
			do(t, os.RemoveAll(filepath.Dir(g.Path)), os.Mkdir(filepath.Dir(g.Path), 0o755))
		}, false},
		"folder moved": {func(t *testing.T, g *guarded) {
			do(t, os.Rename(filepath.Dir(g.Path), filepath.Join(shortDir(t), "old")))
		}, false},
		"replaced by a dead one": {func(t *testing.T, g *guarded) { leaveStale(t, g.Path+".2"); do(t, os.Rename(g.Path+".2", g.Path)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(shortDir(t), "d")
			do(t, os.Mkdir(dir, 0o750), os.Chmod(dir, 0o750))
			g := listenGuarded(t, filepath.Join(dir, "q.sock"))
			waiting, err := net.Dial("unix", g.Path) // accepted before the file is lost
			if err != nil {
				t.Fatal(err)
			}
			defer waiting.Close()
			peer, err := g.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()
			for range 2 {
				c.lose(t, g)
				g.check()
				g.serves(t)
			}
			if _, err := peer.Write([]byte("x")); err != nil {
				t.Errorf("a connection from before: %v", err)
			}
			want := []string{"socket_lost", "socket_bound_again", "socket_lost", "socket_bound_again"}
			if c.quiet {
				want = nil
			}
			if got := g.events(); !slices.Equal(got, want) {
				t.Errorf("logged %v, want %v", got, want)
			}
			if info, err := os.Stat(dir); err != nil || name != "folder made again" && info.Mode().Perm() != 0o750 {
				t.Errorf("the folder: %v, %v", info.Mode(), err)
			}
		})
	}
}

// TestObstacleKeepsTheSocketLost puts something of another program at the path. The listener leaves it alone, reports it, and
// binds again when it is gone.
func TestObstacleKeepsTheSocketLost(t *testing.T) {
	for name, c := range map[string]struct {
		put   func(t *testing.T, g *guarded) (still func() bool, away func() error)
		words string
	}{
		"file": {func(t *testing.T, g *guarded) (func() bool, func() error) {
			do(t, os.Remove(g.Path))
			write(t, g.Path, "precious")
			return func() bool { return read(t, g.Path) == "precious" }, func() error { return os.Remove(g.Path) }
		}, "isn't a socket"},
		"symbolic link": {func(t *testing.T, g *guarded) (func() bool, func() error) {
			do(t, os.Rename(g.Path, g.Path+".old"))
			return linked(t, g.Path+".old", g.Path), func() error { return os.Remove(g.Path) }
		}, "symbolic link"},
		"live socket": {func(t *testing.T, g *guarded) (func() bool, func() error) {
			do(t, os.Remove(g.Path))
			return live(t, g.Path)
		}, "another program (pid "},
		"live socket renamed over it": {func(t *testing.T, g *guarded) (func() bool, func() error) {
			still, away := live(t, g.Path+".2")
			do(t, os.Rename(g.Path+".2", g.Path))
			return still, away
		}, "another program (pid "},
		"another sidecar": {func(t *testing.T, g *guarded) (func() bool, func() error) {
			do(t, os.Remove(g.Path), os.Remove(g.Path+".lock"))
			other, err := Listen(Config{Path: g.Path, Mode: 0o600})
			do(t, err)
			return func() bool { return other.IsAt(g.Path) }, other.Close
		}, "another sidecar (pid "},
		"folder that others can write": {func(t *testing.T, g *guarded) (func() bool, func() error) {
			do(t, os.Remove(g.Path), os.Chmod(filepath.Dir(g.Path), 0o777))
			return func() bool { return true }, func() error { return os.Chmod(filepath.Dir(g.Path), 0o755) }
		}, "every user can write"},
		"folder that is a file": {func(t *testing.T, g *guarded) (func() bool, func() error) {
			dir := filepath.Dir(g.Path)
			do(t, os.RemoveAll(dir))
			write(t, dir, "precious")
			return func() bool { return read(t, dir) == "precious" }, func() error { return os.Remove(dir) }
		}, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(shortDir(t), "d")
			do(t, os.Mkdir(dir, 0o755))
			g := listenGuarded(t, filepath.Join(dir, "q.sock"))
			still, away := c.put(t, g)
			for range 3 {
				g.check()
				if err := g.Lost(); err == nil || !strings.Contains(err.Error(), c.words) {
					t.Fatalf("Lost: %v, want %q", err, c.words)
				}
			}
			if err := g.Adjust(Config{Mode: 0o600}); err == nil {
				t.Error("the mode of another file was changed")
			}
			if !still() {
				t.Error("what is at the path isn't as it was")
			}
			do(t, away())
			g.check()
			g.serves(t)
			if got, want := g.events(), []string{"socket_lost", "socket_not_bound", "socket_bound_again"}; !slices.Equal(got, want) {
				t.Errorf("logged %v, want %v", got, want)
			}
		})
	}
}

// live is another program that listens at the path.
func live(t *testing.T, path string) (still func() bool, away func() error) {
	t.Helper()
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	do(t, err)
	other.SetUnlinkOnClose(false)
	info, err := os.Lstat(path)
	do(t, err)
	at := strings.TrimSuffix(path, ".2")
	return func() bool {
		now, err := os.Lstat(at)
		return err == nil && os.SameFile(now, info)
	}, func() error { return errors.Join(other.Close(), os.Remove(at)) }
}

// TestCloseLeavesTheFileOfAnother: a listener that lost its path removes nothing at its end.
func TestCloseLeavesTheFileOfAnother(t *testing.T) {
	g := listenGuarded(t, filepath.Join(shortDir(t), "q.sock"))
	do(t, os.Remove(g.Path))
	still, away := live(t, g.Path)
	g.check()
	do(t, g.Close())
	g.check() // a check that was under way
	if !still() {
		t.Error("the other program's socket is gone")
	}
	do(t, away())
	if _, err := os.Lstat(g.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("bound after Close: %v", err)
	}
}

// TestInheritedSocketIsWatched: the service manager owns the file, so a lost one is reported and not created.
func TestInheritedSocketIsWatched(t *testing.T) {
	path := filepath.Join(shortDir(t), "q.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	do(t, err)
	ln.SetUnlinkOnClose(false)
	g := &guarded{Listener: nil, log: &lockedBuffer{}}
	g.Listener = Inherited(ln, path, slog.New(slog.NewTextHandler(g.log, nil)))
	defer g.Close()
	g.check()
	if err := g.Lost(); err != nil {
		t.Fatal(err)
	}
	do(t, os.Rename(path, path+".old"))
	for range 2 {
		g.check()
		if err := g.Lost(); err == nil || !strings.Contains(err.Error(), "service manager") {
			t.Fatalf("Lost: %v", err)
		}
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file was created: %v", err)
	}
	do(t, os.Rename(path+".old", path))
	g.check()
	if err := g.Lost(); err != nil {
		t.Errorf("the file is back: %v", err)
	}
	if got, want := g.events(), []string{"socket_lost", "socket_not_bound", "socket_bound_again"}; !slices.Equal(got, want) {
		t.Errorf("logged %v, want %v", got, want)
	}
}

// TestInheritedSocketOfAnotherRoot: with PrivateTmp the service doesn't see the file that its clients use.
func TestInheritedSocketOfAnotherRoot(t *testing.T) {
	path := filepath.Join(shortDir(t), "q.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	do(t, err)
	do(t, os.Remove(path))
	l := Inherited(ln, path, nil)
	l.check()
	if err := l.Lost(); err != nil {
		t.Error(err)
	}
	do(t, l.Close())
}

// TestUmaskAndMode: the file has its mode before any client can connect, whatever the umask is.
func TestUmaskAndMode(t *testing.T) {
	for _, mask := range []int{0, 0o077, 0o777} {
		func() {
			dir := shortDir(t)
			defer unix.Umask(unix.Umask(mask))
			ln, err := Listen(Config{Path: filepath.Join(dir, "q.sock"), Mode: 0o660})
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			if info, err := os.Lstat(ln.Path); err != nil || info.Mode() != fs.ModeSocket|0o660 {
				t.Errorf("umask %03o: %v, %v", mask, info.Mode(), err)
			}
		}()
	}
}

// TestCheckPathFindsALostFile: `qsidecar check` runs beside the sidecar.
func TestCheckPathFindsALostFile(t *testing.T) {
	g := listenGuarded(t, filepath.Join(shortDir(t), "q.sock"))
	do(t, CheckPath(g.Path))
	g.change.Lock() // so that it is not bound again now
	do(t, os.Remove(g.Path))
	removed := CheckPath(g.Path)
	leaveStale(t, g.Path)
	replaced := CheckPath(g.Path)
	g.change.Unlock()
	for what, err := range map[string]error{"removed": removed, "replaced": replaced} {
		if err == nil || !strings.Contains(err.Error(), "lost its socket's file") {
			t.Errorf("%s: %v", what, err)
		}
	}
	g.check()
	do(t, CheckPath(g.Path))
	do(t, g.Close(), CheckPath(g.Path))
}
