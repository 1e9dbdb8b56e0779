package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/sqlite/internal/disk"
)

var errClosed = errors.New("the database handle was closed")

// code returns the primary result code of err, or 0 if err isn't from SQLite.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

func busy(err error) bool {
	c := code(err)
	return c == lib.SQLITE_BUSY || c == lib.SQLITE_LOCKED
}

// ambiguous reports whether a COMMIT that returned err may have reached the disk. A full
// disk, a lock or a constraint stop it before its last frame is written. After an
// I/O error the outcome is unknown.
func ambiguous(err error) bool {
	switch code(err) {
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED, lib.SQLITE_FULL, lib.SQLITE_READONLY, lib.SQLITE_CONSTRAINT,
		lib.SQLITE_CANTOPEN, lib.SQLITE_NOMEM:
		return false
	}
	return true
}

// withKind classifies an error of SQLite, and adds the path and, if it can, a fix.
func (s *Store) withKind(err error) error {
	if err == nil || known(err) {
		return err
	}
	down := func(format string, args ...any) error {
		return backends.Unavailable(fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err))
	}
	switch code(err) {
	case lib.SQLITE_READONLY, lib.SQLITE_PERM, lib.SQLITE_CANTOPEN:
		if file := s.closedFile(); file != "" {
			return down("%s belongs to %s, and this user may not write it: %s", file, disk.Owner(file), ShareFiles(s.path))
		}
	}
	switch code(err) {
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED:
		return down("another program holds the lock of %s", s.path)
	case lib.SQLITE_FULL:
		return backends.DiskFull(fmt.Errorf("the disk that holds %s is full: %w", s.path, err))
	case lib.SQLITE_READONLY, lib.SQLITE_PERM:
		return down("%s can't be written (its file, its folder or its disk is read-only)", s.path)
	case lib.SQLITE_IOERR:
		return down("the disk that holds %s gave an error", s.path)
	case lib.SQLITE_CANTOPEN:
		if _, err := os.Stat(s.path); errors.Is(err, fs.ErrNotExist) {
			return down("there is no file %s", s.path)
		}
		return down("%s, or a file beside it, cannot be opened", s.path)
	case lib.SQLITE_NOMEM, lib.SQLITE_PROTOCOL, lib.SQLITE_INTERRUPT:
		return down("%s", s.path)
	case lib.SQLITE_CONSTRAINT, lib.SQLITE_MISMATCH, lib.SQLITE_TOOBIG:
		return backends.Refused(err)
	case lib.SQLITE_CORRUPT:
		return fmt.Errorf("%s is damaged: stop the sidecar and restore it from a backup (PRAGMA integrity_check shows details): %w", s.path, err)
	case lib.SQLITE_NOTADB:
		return fmt.Errorf("%s isn't an SQLite database, or is encrypted: name another file: %w", s.path, err)
	}
	return fmt.Errorf("%s: %w", s.path, err)
}

// closedFile returns the file of the database, or beside it, or the folder, that this user has no right to write; empty: none.
func (s *Store) closedFile() string {
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		file := s.path + suffix
		if _, err := os.Stat(file); err == nil && errors.Is(disk.Access(file, disk.ReadWrite), fs.ErrPermission) {
			return file
		}
	}
	if folder := filepath.Dir(s.path); errors.Is(disk.Access(folder, disk.WriteIn), fs.ErrPermission) {
		return folder
	}
	return ""
}

// ShareFiles returns what to do so that several users can write a database.
func ShareFiles(path string) string {
	folder := filepath.Dir(path)
	return fmt.Sprintf("run all programs that open the database as one user, or in one group: "+
		"chgrp -R GROUP %[1]s && chmod 2770 %[1]s && chmod 660 %[2]s* (with the setgid bit of the folder, files that are created later have the group, too)", folder, path)
}

// known reports whether err is already classified.
func known(err error) bool {
	return core.Known(err)
}

// ended returns the error of a call whose ctx ended and that changed nothing.
func ended(ctx context.Context, doing string) error {
	return backends.Unavailable(fmt.Errorf("%s: %w", doing, context.Cause(ctx)))
}

// Retry implements core.Driver. It never retries: a transaction waits for the lock before it
// begins, and no other failure is transient.
func (access) Retry(context.Context, error) (again bool, cause int, wait time.Duration) {
	return false, backends.RetryOther, 0
}

// WithKind implements core.Driver.
func (a access) WithKind(err error) error { return a.withKind(err) }

// FromServer implements core.Driver.
func (access) FromServer(err error) bool { return code(err) != 0 }
