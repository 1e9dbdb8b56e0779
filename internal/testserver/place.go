package testserver

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// EnvMemory names a folder in memory, as /dev/shm, for the data of tests, which then waits
// for no disk: tests kill processes, not this machine. A disk that has much to do can stand
// still for longer than a lease is valid. Durable servers are there too, with all that makes
// them durable, but not at full size (QSIDECAR_SOAK).
const EnvMemory = "QSIDECAR_TEST_MEMORY"

// memoryFree is what must be free there, in bytes: some servers' data and logs.
const memoryFree = 6 << 30

// newPlace makes a folder for a server, in memory or else where temporary files are.
func newPlace(prefix string, o Options) (string, error) {
	return os.MkdirTemp(placeFor(o.Durable), fmt.Sprintf("%s-%d-", prefix, os.Getpid()))
}

// Place is a folder for a test's own files: in memory (see EnvMemory), or where temporary
// files are.
func Place() string { return placeFor(true) }

func placeFor(durable bool) string {
	return chosen(durable && os.Getenv("QSIDECAR_SOAK") != "", os.Getenv(EnvMemory))
}

// chosen is memory where there is room in it, else where temporary files are.
func chosen(disk bool, memory string) string {
	var fs syscall.Statfs_t
	if disk || memory == "" || syscall.Statfs(memory, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < memoryFree {
		return os.TempDir()
	}
	return memory
}

// places are the folders of servers, also of those whose test process was killed.
func places() (found []string, err error) {
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
