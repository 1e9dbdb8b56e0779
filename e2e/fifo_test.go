package e2e

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// fifo is a named pipe at which commands wait until the test lets one go on.
type fifo struct {
	t testing.TB
	f *os.File
}

func (s *site) fifo(name string) *fifo {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		s.t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0) // with a reader of its own it never blocks
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { f.Close() })
	return &fifo{s.t, f}
}

// release lets one command go on.
func (f *fifo) release() {
	f.t.Helper()
	if _, err := f.f.WriteString("\n"); err != nil {
		f.t.Fatal(err)
	}
}
