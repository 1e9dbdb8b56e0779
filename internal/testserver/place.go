package testserver

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// EnvMemory names a folder in memory, as /dev/shm, for the data of servers that need not
// be durable: their tables, which tests make by the thousand, then wait for no disk.
const EnvMemory = "QSIDECAR_TEST_MEMORY"

// memoryFree is what must be free there, in bytes: some servers' data and logs.
const memoryFree = 6 << 30

// newPlace makes a folder for a server, in memory or else where temporary files are.
func newPlace(prefix string, o Options) (string, error) {
	return os.MkdirTemp(placeFor(o, os.Getenv(EnvMemory)), fmt.Sprintf("%s-%d-", prefix, os.Getpid()))
}

func placeFor(o Options, memory string) string {
	var fs syscall.Statfs_t
	if o.Durable || memory == "" || syscall.Statfs(memory, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < memoryFree {
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
