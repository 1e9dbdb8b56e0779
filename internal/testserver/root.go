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

// RanAsRoot says at the end of a test that needed root that it did its work: the
// closing lines of `make test` and of .ci/run then hold
//
//	ran as root: WHAT, FIGURE
//
// A WHAT that stands in scripts/root-tests.txt, one a line, must be among them: without
// it the run fails, so that no such test can be left out unseen. To add a test, call
// this as its last step (not in a Cleanup, and not where t.Failed), and add its WHAT there.
func RanAsRoot(what, figure string) error { return Note("ran as root: " + what + ", " + figure) }
