package bridge

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends/memory"
)

func TestSocketAppearsWithItsMode(t *testing.T) {
	o := unixOptions(t, memory.New())
	o.Sockets[0].Mode = 0o600
	s := start(t, o)
	info, err := os.Lstat(s.path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode(); got != fs.ModeSocket|0o600 {
		t.Errorf("mode %v, want a socket of mode 0600", got)
	}
	left, err := os.ReadDir(filepath.Dir(s.path))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{"q.sock", "q.sock.lock"}, names); diff != "" {
		t.Errorf("the socket's folder (-want +got):\n%s", diff)
	}
}

// refusesToListen fails the test unless Run fails with a message that contains each of words.
func refusesToListen(t *testing.T, o Options, words ...string) {
	t.Helper()
	err := newFor(t, o, testLog(t)).Run(context.Background())
	if err == nil {
		t.Fatal("it listens")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func TestSecondSidecarIsRefused(t *testing.T) {
	o := unixOptions(t, memory.New())
	s := start(t, o)
	refusesToListen(t, o, o.Sockets[0].Path, "another sidecar (pid ")
	s.dial(t).call(`{"op":"ping"}`) // the first is unharmed
}

// TestServeStream runs a session over two streams. The end of input releases its jobs without using up an attempt.
func TestServeStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		in := strings.NewReader(`{"op":"enqueue","queue":"q","payload":"x"}` + "\n" + `{"op":"claim","queue":"q"}` + "\n")
		var out bytes.Buffer
		if err := s.ServeStream(context.Background(), in, &out); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(out.String(), "\n"); got != 2 || !strings.Contains(out.String(), `"payload":"x"`) {
			t.Errorf("got %q, want two replies, the second with the job", out.String())
		}
		if j := s.dial(t).claim1("q"); j.Attempt != 1 {
			t.Errorf("attempt %d, want 1", j.Attempt)
		}
	})
}

// TestServeStreamEndsWithItsContext shows that the end of ctx ends the session even if the input stays silent.
func TestServeStreamEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		in, feed := io.Pipe()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		out, answers := io.Pipe()
		go func() { done <- s.ServeStream(ctx, in, answers) }()
		if _, err := feed.Write([]byte(`{"op":"ping"}` + "\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err := feed.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestOptionsReportEverythingWrong(t *testing.T) {
	_, err := New(Options{
		Databases: map[string]Database{"main": {Backend: memory.New(), SidecarTimeout: 1}},
		Queues:    map[string]Queue{"q": {Database: "other", MaxAttempts: -1}, "-bad": {}},
		MaxFrame:  1,
	}, testLog(t))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"max_frame", "databases.main.sidecar_timeout", "queues.q.database", "queues.q.max_attempts", "-bad"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %s:\n%v", want, err)
		}
	}
}

// TestReloadRefusesASocketsFolder shows that such a reload changes nothing.
func TestReloadRefusesASocketsFolder(t *testing.T) {
	o := unixOptions(t, memory.New())
	s := start(t, o)
	open := shortDir(t)
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	next := o
	next.Sockets = append([]Socket{{Path: filepath.Join(shortDir(t), "fine.sock")}}, o.Sockets[0], Socket{Path: filepath.Join(open, "q.sock")})
	next.Queues = map[string]Queue{"other": {}}
	if err := s.Reload(next); err == nil || !strings.Contains(err.Error(), "every user can write") {
		t.Fatalf("a reload with a socket in a folder that all can write: %v", err)
	}
	for _, socket := range []Socket{next.Sockets[0], next.Sockets[2]} {
		if _, err := os.Lstat(socket.Path); err == nil {
			t.Errorf("%s is there after a reload that was refused", socket.Path)
		}
	}
	s.dial(t).call(`{"op":"stats","queue":"q"}`)
}
