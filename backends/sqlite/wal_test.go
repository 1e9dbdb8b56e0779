package sqlite

import (
	"os"
	osexec "os/exec"
	"path/filepath"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
)

// The space that makeRoom adds to a growing WAL is not mistaken for a part of the log: not by a
// process that continues, not by a recovery after a crash, and not once the snapshot is gone.
//
// Not parallel: a child process that is starting would keep TestAFullDisk's disk busy.
func TestRoomInTheWAL(t *testing.T) {
	s := fresh(t)
	release := hold(t, s)
	large := backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: make([]byte, 1<<20)}}}}}
	stored, room := int64(0), false
	for !room || stored < walUsual>>20+5 {
		if _, err := s.Commit(t.Context(), large); err != nil {
			t.Fatal(err)
		}
		if stored++; stored > 60 {
			t.Fatalf("after %d MiB no room was made", stored)
		}
		room = room || size(t, s.path+"-wal") > (stored+4)<<20
	}
	if n := ready(t, s); n != stored {
		t.Errorf("%d ready, want %d", n, stored)
	}
	crashed := filepath.Join(t.TempDir(), "jobs.db")
	// Another program copies the files: closing a descriptor here would drop SQLite's locks.
	for _, suffix := range []string{"", "-wal"} {
		if out, err := osexec.Command("cp", s.path+suffix, crashed+suffix).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if n := ready(t, open(t, crashed)); n != stored {
		t.Errorf("%d ready after a crash, want %d", n, stored)
	}
	release()
	for range 5 {
		if _, err := s.Commit(t.Context(), one); err != nil {
			t.Fatal(err)
		}
	}
	if n := ready(t, s); n != stored+5 {
		t.Errorf("%d ready in the end, want %d", n, stored+5)
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
