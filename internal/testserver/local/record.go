package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// EnvRan names a file that gets a line for each server that tests used. The output of passing tests
// is not shown.
const EnvRan = "QSIDECAR_TEST_SERVERS_RAN"

// RecordServer adds a line about a server that this program used.
func RecordServer(server string) error {
	return Record(fmt.Sprintf("%s ran for %s\n", server, filepath.Base(os.Args[0])))
}

// Note adds a test's own line to the file of EnvRan.
func Note(line string) error { return Record(line + "\n") }

// Record adds a line to the file that EnvRan names, if it is set.
func Record(line string) (err error) {
	name := os.Getenv(EnvRan)
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("%s: %w", EnvRan, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString(line)
	return err
}

// RanAsRoot reports at the end of a test that needs root that the test ran. The suite then prints
//
//	ran as root: WHAT, FIGURE
//
// A line "SUITE WHAT" of scripts/root-tests.txt makes that suite (test or check) fail if the report
// is missing, so that no such test is skipped silently. To add a test, call RanAsRoot as its last
// step (not in a Cleanup, and not if t.Failed), and add its line there.
func RanAsRoot(what, figure string) error { return Note("ran as root: " + what + ", " + figure) }
