package testserver

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// EnvMemory names a directory in memory, such as /dev/shm, for the data of tests. Tests kill
// processes, not the machine, so they need no disk, and a busy disk can stall for longer than a
// lease lasts. Durable servers use it too, with all their durability settings, except in full-size
// runs (QSIDECAR_SOAK).
const EnvMemory = "QSIDECAR_TEST_MEMORY"

// memoryFree is how many bytes must be free there for the data and logs of several servers.
const memoryFree = 6 << 30

// newServerDir creates a directory for a server, in memory or in the system's temporary directory.
func newServerDir(prefix string, o Options) (string, error) {
	return os.MkdirTemp(tempDirFor(o.Durable), fmt.Sprintf("%s-%d-", prefix, os.Getpid()))
}

// TempDir returns the directory for a test's own files: in memory (see EnvMemory), or the system's
// temporary directory.
func TempDir() string { return tempDirFor(true) }

func tempDirFor(durable bool) string {
	return chooseTempDir(durable && os.Getenv("QSIDECAR_SOAK") != "", os.Getenv(EnvMemory))
}

// chooseTempDir returns memory if it has enough space, otherwise the system's temporary directory.
func chooseTempDir(disk bool, memory string) string {
	var fs syscall.Statfs_t
	if disk || memory == "" || syscall.Statfs(memory, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < memoryFree {
		return os.TempDir()
	}
	return memory
}

// serverDirs returns the directories of servers, including those of test processes that were killed.
func serverDirs() (found []string, err error) {
	roots := []string{os.TempDir()}
	if memory := os.Getenv(EnvMemory); memory != "" {
		roots = append(roots, memory)
	}
	for _, root := range roots {
		some, err := filepath.Glob(filepath.Join(root, "qs[pm][gy]-*-*"))
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}
