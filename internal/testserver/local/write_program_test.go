package local

import (
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// TestWriteProgram checks that a written program can be run at once while others start programs
// too.
func TestWriteProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stop := make(chan struct{})
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := exec.Command("true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	defer others.Wait()
	defer close(stop)
	for range 300 {
		program := filepath.Join(dir, "program")
		if err := WriteProgram(program, []byte("#!/bin/sh\nexit 0\n")); err != nil {
			t.Fatal(err)
		}
		if err := exec.Command(program).Run(); err != nil {
			t.Fatal(err)
		}
	}
}
