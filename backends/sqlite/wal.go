package sqlite

import (
	"errors"
	"io/fs"
	"os"
)

// While another program keeps a snapshot open (a report, a backup), the WAL can't restart
// from its beginning and only grows. A sync of a file that has grown costs more than a sync
// of a file that was overwritten, because the new size must be stored too. That cost up to
// 40 % of the rate (BenchmarkClaimPath). So makeRoom extends the WAL in larger steps. SQLite
// treats zeros after the last frame as the end of the log, like the remains of an older,
// longer log.
const (
	walStep = 16 << 20
	// walUsual is more than the size that the WAL reaches if nothing prevents it from restarting
	// (see wal_autocheckpoint).
	walUsual = 20 << 20
)

// makeRoom extends the WAL when SQLite has used all of it. The caller holds SQLite's write
// lock and has written nothing yet, so no other program appends at the same time. A failure
// only costs speed.
func (s *Store) makeRoom() {
	info, err := os.Stat(s.path + "-wal")
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("can't read the WAL", "event", "wal_read_failed", "path", s.path, "error", err)
		}
		return
	}
	size := info.Size()
	if size <= s.walSize || size < walUsual {
		s.walSize = size // smaller: SQLite truncated it, and it grows normally again
		return
	}
	s.walSize = size + walStep
	if err := zeros(s.path+"-wal", size, walStep); err != nil {
		s.log.Warn("can't extend the WAL", "event", "wal_extend_failed", "path", s.path, "error", err)
	}
}

// zeros writes n zeros at an offset of a file, in pieces so that it needs little memory. It doesn't sync, because the next commit does.
func zeros(path string, at int64, n int) error {
	// Closing a descriptor drops locks of the process, but SQLite has no locks on the WAL.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	piece := make([]byte, 1<<16)
	for end := at + int64(n); at < end && err == nil; at += int64(len(piece)) {
		_, err = f.WriteAt(piece[:min(int64(len(piece)), end-at)], at)
	}
	return errors.Join(err, f.Close())
}
