package testserver

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestCopySparse copies a file that has blocks of zeros between others and at its end.
func TestCopySparse(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	want := make([]byte, 40*len(zeros)+100)
	want[5], want[20*len(zeros)] = 1, 2
	if err := os.WriteFile(from, want, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := copySparse(to, from); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(to)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy differs, or: %v", err)
	}
	info, err := os.Stat(to)
	if err != nil {
		t.Fatal(err)
	}
	if takes := info.Sys().(*syscall.Stat_t).Blocks * 512; takes > 4*int64(len(zeros)) {
		t.Errorf("the copy takes %d bytes, want two blocks of %d", takes, len(zeros))
	}
}
