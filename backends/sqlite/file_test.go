package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlite/internal/disk"
)

// fails opens a database that must not open, and checks the error.
func fails(t *testing.T, path string, words ...string) error {
	t.Helper()
	s, err := Open(t.Context(), Options{Path: path})
	if err == nil {
		t.Fatalf("%s opened, and closed: %v", path, s.Close())
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	return err
}

func TestPlacesThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte(strings.Repeat("no database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, "", "empty", "sqlite:PATH")
	fails(t, dir, dir, "is a folder")
	fails(t, filepath.Join(file, "jobs.db"), file, "not a directory")
	fails(t, file, file, "isn't an SQLite database")
	fails(t, fifo, fifo, "isn't a regular file")
}

func TestFoldersAreMadeAndNamesMeanNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "dir", "a b%20?mode=ro&_pragma=x#ü'.db")
	open(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() == 0 || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("the file has %d bytes and mode %v", info.Size(), info.Mode())
	}
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil || dir.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v, %v", dir.Mode(), err)
	}
}

// Not parallel: it replaces disk.Statfs for all tests.
func TestNetworkFileSystemsAreRefused(t *testing.T) {
	genuine := disk.Statfs
	defer func() { disk.Statfs = genuine }()
	path := filepath.Join(t.TempDir(), "jobs.db")
	for magic, name := range map[int64]string{unix.NFS_SUPER_MAGIC: "NFS", unix.CIFS_SUPER_MAGIC: "CIFS", 0x0bd00bd0: "Lustre"} {
		disk.Statfs = func(_ string, s *unix.Statfs_t) error {
			s.Type = magic
			return nil
		}
		fails(t, path, path, "network file system", name, "local disk")
	}
	disk.Statfs = func(string, *unix.Statfs_t) error { return unix.EIO }
	fails(t, path, "input/output error")
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused place was written to: %v", err)
	}
	disk.Statfs = genuine
	open(t, path)
}

func TestAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m")
	mounted := err == nil
	if mounted {
		t.Cleanup(func() {
			// A process that another test has just forked keeps the files open until its exec.
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	} else if !errors.Is(err, unix.EPERM) {
		t.Fatal(err)
	}
	s := open(t, filepath.Join(dir, "jobs.db"))
	if !mounted { // without the right to mount, SQLite simulates the full disk
		if err := s.writer.once("PRAGMA max_page_count=200"); err != nil {
			t.Fatal(err)
		}
	}
	put := func(size int) error {
		_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{
			backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: make([]byte, size)}}},
		}})
		return err
	}
	stored := int64(0)
	for err = put(50_000); err == nil; err = put(50_000) {
		stored++
	}
	if !backends.Retryable(err) || !strings.Contains(err.Error(), "full") || !strings.Contains(err.Error(), s.path) {
		t.Fatalf("a full disk is reported as %v", err)
	}
	if stored < 5 {
		t.Fatalf("full after %d", stored)
	}
	st, err := s.Stats(t.Context(), "q")
	if err != nil || st[0].Ready != stored {
		t.Fatalf("%+v, %v; want the %d jobs that were answered", st, err, stored)
	}
}

func TestManyOpenAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "jobs.db")
	stores := make([]*Store, 8)
	var wg sync.WaitGroup
	for i := range stores {
		wg.Go(func() {
			s, err := Open(t.Context(), Options{Path: path})
			if err != nil {
				t.Error(err)
				return
			}
			stores[i] = s
			if _, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{
				backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}},
			}}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, s := range stores {
		if s == nil {
			t.FailNow()
		}
		if s.Info().Database != stores[0].Info().Database || len(s.Info().Database) != 11 {
			t.Errorf("database ids %q and %q", s.Info().Database, stores[0].Info().Database)
		}
		st, err := s.Stats(t.Context(), "q")
		if err != nil || st[0].Ready != int64(len(stores)) {
			t.Errorf("%+v, %v", st, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
