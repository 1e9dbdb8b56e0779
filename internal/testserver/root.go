package testserver

import (
	"context"
	"os"
	"os/exec"
)

// AsRoot is a command that runs as root: by itself where this process is root, else by
// sudo, which must ask for no password. sudo hands on no environment but what env
// itself is given: AsRoot(ctx, "env", "A=b", "program").
func AsRoot(ctx context.Context, name string, args ...string) *exec.Cmd {
	if os.Geteuid() != 0 {
		name, args = "sudo", append([]string{"-n", "--", name}, args...)
	}
	return exec.CommandContext(ctx, name, args...)
}

// RanAsRoot reports at the end of a test that needed root that it did its work. The suite
// then prints
//
//	ran as root: WHAT, FIGURE
//
// A line "SUITE WHAT" of scripts/root-tests.txt makes that suite (test or check) fail
// without it, so that no such test can be left out unseen. To add a test, call this as its
// last step (not in a Cleanup, and not if t.Failed), and add its line there.
func RanAsRoot(what, figure string) error { return Note("ran as root: " + what + ", " + figure) }
