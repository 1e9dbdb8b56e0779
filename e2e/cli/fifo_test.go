package cli

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// fifo is a named pipe at which commands wait until the test releases one.
type fifo struct {
	t testing.TB
	f *os.File
}

func newFIFO(s *kit.Site, name string) *fifo {
	s.T.Helper()
	path := filepath.Join(s.Dir, name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		s.T.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0) // opening it for reading and writing does not block
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { f.Close() })
	return &fifo{s.T, f}
}

// release lets one command continue.
func (f *fifo) release() {
	f.t.Helper()
	if _, err := f.f.WriteString("\n"); err != nil {
		f.t.Fatal(err)
	}
}
