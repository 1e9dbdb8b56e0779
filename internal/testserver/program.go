package testserver

import (
	"os"
	"syscall"
)

// WriteProgram is os.WriteFile for a program that is run afterwards. While the file is
// open for writing no other goroutine forks: its child would have it open, too, until it
// is another program, and who ran this one meanwhile would be told that the text file
// is busy (https://go.dev/issue/22315).
func WriteProgram(path string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()

	return os.WriteFile(path, content, 0o755)
}
