package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlite/internal/disk"
)

// making prevents a second Open in this process from opening a file that the first one is
// creating. Closing any descriptor of a file drops all POSIX locks of the process on it,
// including SQLite's.
var making sync.Mutex

// placed makes the path of a database absolute. It doesn't access the file.
func placed(path string) (string, fs.FileInfo, error) {
	if path == "" {
		return "", nil, errors.New("sqlite: the path of the database is empty: write sqlite:PATH")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", nil, fmt.Errorf("sqlite: %w", err)
	}
	return path, nil, nil
}

// prepare checks the path of a database and creates the file if it is missing.
// It returns the absolute path, and the identity of the file.
func prepare(path string) (string, fs.FileInfo, error) {
	path, _, err := placed(path)
	if err != nil {
		return "", nil, err
	}
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", nil, fmt.Errorf("can't create the folder of the database %s: %w", path, err)
	}
	making.Lock()
	defer making.Unlock()
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return "", nil, fmt.Errorf("%s is a folder: name a database file in it, as %s", path, filepath.Join(path, "qsidecar.db"))
	case err == nil && !info.Mode().IsRegular():
		return "", nil, fmt.Errorf("%s isn't a regular file: name another file for the database", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", nil, fmt.Errorf("the database cannot be opened: %w", err)
	}
	// NetworkFS follows links to the disk that will hold the database.
	if name, err := disk.NetworkFS(folder); err != nil {
		return "", nil, fmt.Errorf("can't read the state of the disk of %s: %w", path, err)
	} else if name != "" {
		return "", nil, fmt.Errorf("%s is on a network file system (%s), where SQLite's WAL mode loses data: "+
			"put the database on a local disk, or use a database server for several hosts", path, name)
	}
	if info == nil {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o660)
		if err == nil {
			err = f.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrExist) { // another process may have created it first
			return "", nil, fmt.Errorf("can't create the database: %w", err)
		}
	}
	if info, err = os.Stat(path); err != nil {
		return "", nil, fmt.Errorf("the database cannot be opened: %w", err)
	}
	return path, info, nil
}

// inPlace returns an error if the open file is no longer the one at its path. Anything written to
// such a file is lost when the last program closes it.
func (s *Store) inPlace() error {
	now, err := os.Stat(s.path)
	if err == nil && !os.SameFile(now, s.file) {
		err = errors.New("another file replaced it")
	}
	if err != nil {
		return backends.Unavailable(fmt.Errorf("the database %s was moved or deleted while it was open; restart the sidecar: %w", s.path, err))
	}
	return nil
}
