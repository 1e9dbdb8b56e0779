package worker

import (
	"fmt"
	"os"
	"syscall"
)

// folder is the working folder, which the commands inherit. A deployment can delete the folder of a release in which a
// worker still runs. Then the commands don't find their scripts, and all jobs would fail.
type folder struct{ path string }

// openFolder returns the working folder, or an error if it was deleted before the start.
func openFolder() (folder, error) {
	path, err := syscall.Getwd()
	if err != nil {
		return folder{}, folder{path: "of this worker"}.gone(err)
	}
	return folder{path: path}, nil
}

// check returns an error if the folder was deleted.
func (f folder) check() error {
	if _, err := syscall.Getwd(); err != nil { // a stat finds a deleted folder as long as a process is in it
		return f.gone(err)
	}
	if _, err := os.Stat("."); err != nil { // for example of a file system that is gone
		return f.gone(err)
	}
	return nil
}

func (f folder) gone(err error) error {
	return fmt.Errorf("the working folder %s was deleted or is unreachable (%w), so no job can run: start the worker again in an existing folder", f.path, err)
}
