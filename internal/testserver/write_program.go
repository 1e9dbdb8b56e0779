package testserver

import (
	"os"
	"syscall"
)

// WriteProgram is os.WriteFile for a program that the test will run. While the file is open for
// writing, no other goroutine forks. Otherwise the child would have the file open until its exec,
// and running the program in that time fails with "text file busy" (https://go.dev/issue/22315).
func WriteProgram(path string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()

	return os.WriteFile(path, content, 0o755)
}
