// Command suite runs the project's tests, as `make test`, `make check`, `make flaky`, `make cover`
// and `make soak`. It shows progress and ends with one line: what passed, on which database servers
// and in what time.
//
// Start with suites.go, which lists the steps of each suite. step.go runs a step and report.go
// collects the results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = `usage: suite [flags] COMMAND

  test     the program works on this machine: unit tests, one server of each kind, user journeys
  check    everything else: race detector, lint, every server version, crash and network runs, packages
  engine   one engine's tests (-engine postgres, mysql, mariadb, sqlite, sqlserver, memory)
  cluster  the tests of database clusters, in their short form
  flaky    a suite -n times in random order beside other work; a table of all tests
  touched  flaky, for the tests that differ from -base
  cover    statement coverage of each package by a suite
  soak     crash and network runs at full size with random seeds

`

// options are the flags of all commands.
type options struct {
	suite  string        // for flaky and cover: test or check
	n      int           // runs of flaky and touched
	load   int           // busy processes during flaky
	base   string        // commit with which touched compares
	engine string        // for engine
	run    string        // go test -run, to select a part of a suite
	time   time.Duration // flaky and soak start no further run after it; 0: no limit
	seed   uint64        // for soak, to repeat a run; 0: a new one for each run
	out    string        // directory for the logs of a run
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		if !errors.Is(err, errFailed) { // a failed suite has already printed its line
			fmt.Fprintln(os.Stderr, "suite:", err)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("suite", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage); flags.PrintDefaults() }
	flags.StringVar(&o.suite, "suite", "test", "suite that flaky and cover run: test or check")
	flags.IntVar(&o.n, "n", 10, "number of runs of flaky and touched")
	flags.IntVar(&o.load, "load", 2, "busy processes beside flaky and touched, besides one that writes to the disk")
	flags.StringVar(&o.base, "base", "HEAD~1", "commit that touched compares with")
	flags.StringVar(&o.engine, "engine", "", "engine that engine tests")
	flags.StringVar(&o.run, "run", "", "regular expression of test names, as of go test -run")
	flags.DurationVar(&o.time, "time", 0, "time after which flaky, touched and soak start no further run (0: no limit)")
	flags.Uint64Var(&o.seed, "seed", 0, "seed that soak replays (0: a new one for each run)")
	flags.StringVar(&o.out, "out", "bin/tests", "folder for the logs")
	if err := flags.Parse(args); err != nil {
		return err
	}
	commands := map[string]func(context.Context, options) error{
		"test": runTest, "check": runCheck, "engine": runEngine, "cluster": runCluster, "flaky": runFlaky, "touched": runTouched,
		"cover": runCover, "soak": runSoak, "busy": busy, "write": writeDisk,
	}
	command, ok := commands[flags.Arg(0)]
	if !ok || flags.NArg() != 1 {
		flags.Usage()
		return errors.New("no such command")
	}
	return command(ctx, o)
}
