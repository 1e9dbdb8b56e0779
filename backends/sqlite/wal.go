package sqlite

import (
	"errors"
	"io/fs"
	"os"
)

// While another program holds a snapshot (a report, a backup), the WAL cannot begin
// anew and only grows, and a sync of a file that has grown costs the disk more than
// one of a file that was written inside: its new size must be kept too. That took
// up to 40 % of the rate (BenchmarkClaimPath). So room is made in steps beyond the
// end; SQLite takes zeros there for the end of the log, as it does what an older,
// longer log left.
const (
	walStep = 16 << 20
	// walUsual is more than the WAL grows to where nothing keeps it from beginning
	// anew (wal_autocheckpoint).
	walUsual = 20 << 20
)

// makeRoom lengthens the WAL where SQLite has filled what was there. The caller
// holds SQLite's write lock and has written nothing yet: nobody appends meanwhile.
// Failing harms nothing but the speed.
func (s *Store) makeRoom() {
	info, err := os.Stat(s.path + "-wal")
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("the WAL cannot be looked at", "path", s.path, "error", err)
		}
		return
	}
	size := info.Size()
	if size <= s.walSize || size < walUsual {
		s.walSize = size // less: it was cut, and grows by itself again
		return
	}
	s.walSize = size + walStep
	if err := zeros(s.path+"-wal", size, walStep); err != nil {
		s.log.Warn("no room could be made in the WAL", "path", s.path, "error", err)
	}
}

// zeros writes n of them at an offset of a file. It does not sync: the next commit does.
func zeros(path string, at int64, n int) error {
	// SQLite has no locks on the WAL that closing a descriptor could drop.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, n), at)
	return errors.Join(err, f.Close())
}
