package testserver

import (
	"context"
	"os"
	"os/exec"
)

// AsRoot returns a command that runs as root: directly if this process is root, otherwise with
// sudo, which must not ask for a password. sudo passes on only the environment of an env command:
// AsRoot(ctx, "env", "A=b", "program").
func AsRoot(ctx context.Context, name string, args ...string) *exec.Cmd {
	if os.Geteuid() != 0 {
		name, args = "sudo", append([]string{"-n", "--", name}, args...)
	}
	return exec.CommandContext(ctx, name, args...)
}

// RanAsRoot reports at the end of a test that needs root that the test ran. The suite then prints
//
//	ran as root: WHAT, FIGURE
//
// A line "SUITE WHAT" of scripts/root-tests.txt makes that suite (test or check) fail if the report
// is missing, so that no such test is skipped silently. To add a test, call RanAsRoot as its last
// step (not in a Cleanup, and not if t.Failed), and add its line there.
func RanAsRoot(what, figure string) error { return Note("ran as root: " + what + ", " + figure) }
