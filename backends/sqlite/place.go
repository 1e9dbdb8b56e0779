package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// making keeps a second Open in this process from opening a file that the first
// is just making: closing any descriptor of a file drops all the process's POSIX
// locks on it, SQLite's too.
var making sync.Mutex

// prepare checks the place of a database and makes the file where it is missing.
// It returns the path made absolute.
func prepare(path string) (string, error) {
	if path == "" {
		return "", errors.New("sqlite: the path of the database is empty: write sqlite:PATH")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("sqlite: %w", err)
	}
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", fmt.Errorf("the folder of the database %s cannot be made: %w", path, err)
	}
	making.Lock()
	defer making.Unlock()
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return "", fmt.Errorf("%s is a folder: name a database file in it, as %s", path, filepath.Join(path, "qsidecar.db"))
	case err == nil && !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is no regular file: a database cannot be kept in it", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("the database cannot be opened: %w", err)
	}
	// Through links, to the disk that will hold it.
	if name, err := networkFS(folder); err != nil {
		return "", fmt.Errorf("the disk of %s cannot be looked at: %w", path, err)
	} else if name != "" {
		return "", fmt.Errorf("%s is on a network file system (%s), where SQLite's WAL mode loses data: "+
			"put the database on a local disk, or use a database server for several hosts", path, name)
	}
	if info == nil {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o660)
		if err == nil {
			err = f.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrExist) { // another process may have been quicker
			return "", fmt.Errorf("the database cannot be made: %w", err)
		}
	}
	return path, nil
}
