package bridge

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// handedOver is a socket as a service manager creates it: its own copy keeps listening, whatever happens to the one
// that it passed on.
func handedOver(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	made, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { made.Close() })
	f, err := made.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	given, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	return given.(*net.UnixListener)
}

// TestInherited shows that an inherited socket is served as it is, under the rules of its entry. It is not removed at
// the end, and the next sidecar serves clients that connect after that.
func TestInherited(t *testing.T) {
	o := unixOptions(t, memory.New())
	path := o.Sockets[0].Path
	given := handedOver(t, path)
	if err := os.Chmod(path, 0o606); err != nil {
		t.Fatal(err)
	}
	before, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	o.Inherited = []*net.UnixListener{given}
	f, err := given.File() // for the next sidecar
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := start(t, o)
	s.dial(t).call(`{"op":"ping"}`)
	s.reloads(t, with(o, func(o *Options) { o.Sockets[0].Mode, o.Sockets[0].Allow = 0o600, []Rule{{Users: []uint32{4242}}} }))
	s.dial(t).refused("forbidden", `{"op":"ping"}`)
	if err := s.Reload(with(o, func(o *Options) { o.Sockets[0].Path = filepath.Join(shortDir(t), "other.sock") })); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a reload without the socket that was handed over: %v, want a refusal that names it", err)
	}
	s.dial(t).refused("forbidden", `{"op":"ping"}`)
	s.stop()
	if err := s.wait(t); err != nil {
		t.Fatal(err)
	}
	after, err := os.Lstat(path)
	if err != nil || !os.SameFile(before, after) || after.Mode() != before.Mode() {
		t.Fatalf("the socket's file after the end: %v, %v, want it as it was: %v", after, err, before.Mode())
	}
	if _, err := os.Lstat(path + ".lock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a lock of another program's socket: %v", err)
	}
	waits := s.dial(t) // while no sidecar serves
	next, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	o.Inherited = []*net.UnixListener{next.(*net.UnixListener)}
	start(t, o)
	waits.call(`{"op":"ping"}`)
}

// TestInheritedUnknown shows that an inherited socket without an entry does not give access without rules.
func TestInheritedUnknown(t *testing.T) {
	o := unixOptions(t, memory.New())
	path := filepath.Join(shortDir(t), "unknown.sock")
	given := handedOver(t, path)
	defer given.Close()
	o.Inherited = []*net.UnixListener{given}
	if _, err := New(o, testLog(t)); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("New: %v, want a refusal that names %s", err, path)
	}
}

// TestAnswers shows that a sidecar is not stuck if its sockets answer, refuse, or are gone, also if another program has
// the path. It is stuck if one accepts connections and never replies.
func TestAnswers(t *testing.T) {
	o := unixOptions(t, memory.New())
	o.Sockets = append(o.Sockets, Socket{Path: filepath.Join(shortDir(t), "ruled.sock"), Allow: []Rule{{Users: []uint32{4242}}}},
		Socket{Path: filepath.Join(shortDir(t), "gone.sock")})
	s := start(t, o)
	if err := os.Remove(o.Sockets[2].Path); err != nil {
		t.Fatal(err)
	}
	if err := s.Answers(testwait.Context(t)); err != nil {
		t.Errorf("a sidecar that is well: %v", err)
	}
	silent, err := net.ListenUnix("unix", &net.UnixAddr{Name: o.Sockets[2].Path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if err := s.Answers(testwait.Context(t)); err != nil {
		t.Errorf("a sidecar whose path another program has: %v", err)
	}
	why := errors.New("long enough")
	short, stop := context.WithCancelCause(t.Context())
	checked := make(chan struct{})
	var taking sync.WaitGroup
	taking.Go(func() {
		conn, err := silent.Accept()
		stop(why)
		<-checked // closing it would be an answer
		if err == nil {
			conn.Close()
		}
	})
	if err := answers(short, o.Sockets[2].Path); !errors.Is(err, why) {
		t.Errorf("a silent socket: %v", err)
	}
	close(checked)
	taking.Wait()
}
