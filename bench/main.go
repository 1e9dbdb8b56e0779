// Command bench measures a sidecar with no-op jobs of 100 bytes over the socket, interleaved in one
// run with what workers would do directly in the same database. The ratios count: absolute figures
// differ between machines.
//
//	bench -bin ../bin/qsidecar                 starts its own servers, every engine
//	bench -bin ../bin/qsidecar -engine mysql   one of them
//	bench -socket PATH                         a sidecar that already runs
//
// Start with parts in this file: each part is a section of the output. engine.go describes an
// engine, and work.go has the workers.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the sizes of all measurements.
type options struct {
	engines string
	parts   string // of all parts
	bin     string
	workers int
	jobs    int // of each measurement
	batch   int
	rounds  int
	rows    int // of each state in a large table
	held    int // jobs processed while a snapshot is held
	finish  int // done rows to prune, and as many dead ones
	wakes   int // enqueues to a waiting worker
	fast    bool

	cell time.Duration // of one measurement of the parts rivals and workers

	// of the part rivals
	only string        // patterns of peer/workload
	time time.Duration // of the part
	file string        // the results, of all parts
}

// part is one section of a run.
type part struct {
	name string
	run  func(ctx context.Context, p *place) error
}

// parts are all parts in order.
var parts = []part{{"rivals", rivals}, {"compare", compare}, {"wake", wake}, {"idle", idle}, {"backlog", backlog}, {"snapshot", snapshot}, {"retention", retention}, {"clients", clients}, {"workers", workers}}

func partNames(parts []part) string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return strings.Join(names, ",")
}

func main() {
	if err := begin(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// begin runs the program, or the role that it has in another one.
func begin() error {
	if played, err := playRole(); played {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return run(ctx, os.Args[1:], os.Stdout)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	socket := flags.String("socket", "", "measure the sidecar that listens there, and nothing else")
	flags.StringVar(&o.bin, "bin", "", "the qsidecar to measure on servers of its own, beside the direct SQL")
	flags.StringVar(&o.engines, "engine", engineNames(), "the databases, with commas between")
	flags.StringVar(&o.parts, "parts", partNames(parts[1:]), "what to measure, with commas between: also "+parts[0].name)
	flags.IntVar(&o.workers, "workers", 32, "connections to the sidecar")
	flags.IntVar(&o.jobs, "jobs", 20_000, "jobs of each measurement")
	flags.IntVar(&o.batch, "batch", 100, "jobs in each request of the batch measurements")
	flags.IntVar(&o.rounds, "rounds", 3, "how often the interleaved measurements run")
	flags.IntVar(&o.rows, "rows", 0, "ready, scheduled and dead rows of the large table, each; 0: a number for each engine")
	flags.IntVar(&o.held, "held", 0, "jobs that are worked while a snapshot is held; 0: a number for each engine")
	flags.IntVar(&o.finish, "finished", 1_000_000, "done rows that are pruned, and as many dead ones")
	flags.IntVar(&o.wakes, "wakes", 100, "enqueues to a worker that waits, for each way")
	flags.BoolVar(&o.fast, "fast", false, "servers that sync nothing: for tests of the benchmark itself")
	flags.StringVar(&o.only, "only", "*/*", "rivals: the measurements, as patterns PEER/WORKLOAD with commas between")
	flags.DurationVar(&o.cell, "cell", time.Second, "rivals, workers: the time that one measurement takes, about")
	flags.DurationVar(&o.time, "time", 55*time.Minute, "rivals: no new round begins if it would end later")
	flags.StringVar(&o.file, "results", "", "the file to write the ratios and the tables of rivals to; the plot is beside it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("what is %q? Everything is a flag", flags.Arg(0))
	case o.workers < 1 || o.jobs < 1 || o.batch < 1 || o.batch > 1000 || o.rounds < 1 || o.wakes < 1 || o.finish < 1 || o.rows < 0 || o.held < 0:
		return errors.New("every size is at least 1 (-rows and -held: 0), and -batch at most 1000")
	case *socket != "":
		return alone(out, *socket, o)
	case o.bin == "":
		return errors.New("give -bin, the program to measure, or -socket, a running one")
	}
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return err
	}
	o.bin = bin
	chosen, err := enginesNamed(o.engines)
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(o.parts, ",") {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("no part %q: there are %s", name, partNames(parts))
		}
	}
	return measureAll(ctx, out, chosen, o)
}

// measureAll measures the engines one after another, and writes the file, if there is one.
func measureAll(ctx context.Context, out io.Writer, chosen []engine, o options) error {
	all := &report{w: out}
	var failure error // the other engines continue
	for _, e := range chosen {
		err := measure(ctx, all, e, o)
		if errors.Is(err, errUnavailable) {
			all.unavailable(e.name, err)
		} else if err != nil {
			failure = errors.Join(failure, fmt.Errorf("%s: %w", e.name, err))
		}
	}
	if o.file != "" {
		failure = errors.Join(failure, all.write(o.file))
	}
	return errors.Join(failure, all.err)
}

// place describes the setup in which an engine is measured.
type place struct {
	options
	engine engine
	server server
	out    *report
}

// measure runs the parts on one engine.
func measure(ctx context.Context, out *report, e engine, o options) (err error) {
	s, err := e.start(ctx, o.fast)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	o.rows, o.held = cmp.Or(o.rows, e.rows), max(cmp.Or(o.held, e.held), snapshotSteps)
	p := &place{options: o, engine: e, server: s, out: out}
	p.out.title(s.Version(), o)
	wanted := strings.Split(o.parts, ",")
	for _, x := range parts {
		if !slices.Contains(wanted, x.name) {
			continue
		}
		if failed := x.run(ctx, p); failed != nil { // the other parts continue
			err = errors.Join(err, fmt.Errorf("%s: %w", x.name, failed))
		}
	}
	return err
}

// alone measures a sidecar that already runs.
func alone(out io.Writer, socket string, o options) error {
	s := &sidecar{socket: socket}
	queue := fmt.Sprintf("bench-%d", os.Getpid())
	r := &report{w: out}
	r.head()
	for _, m := range ownSteps(o, queue) {
		f, err := s.load(o.workers, m.jobs, m.task, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		r.row(m.name, []figures{f})
	}
	return r.err
}
