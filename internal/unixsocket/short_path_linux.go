package unixsocket

import (
	"fmt"
	"os"
)

// shortPath is a short name for the file "s" in dir, whatever the length of dir.
func shortPath(dir string) (path string, done func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/s", f.Fd()), func() { _ = f.Close() }, nil // only read from: nothing to lose
}
