// Command bench measures a sidecar with no-op jobs of 100 bytes over the socket, interleaved in one
// run with what workers would do directly in the same database. The ratios count: absolute figures
// differ between machines.
//
//	bench -bin ../bin/qsidecar                 starts its own servers, every engine
//	bench -bin ../bin/qsidecar -engine mysql   one of them
//	bench -socket PATH                         a sidecar that already runs
//
// Start with parts in this file: each part is a section of the output, and has a file here. The part rivals is a package of its
// own. Package internal/measure has the workers and the report, and internal/engines the databases.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"github.com/qsidecar/qsidecar/bench/internal/engines"
	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/bench/rivals"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// part is one section of a run.
type part struct {
	name string
	run  func(ctx context.Context, p *plan) error
}

// parts are all parts in order.
var parts = []part{{"rivals", comparePeers}, {"compare", compare}, {"wake", wake}, {"idle", idle}, {"steer", steer}, {"backlog", backlog}, {"snapshot", snapshot}, {"retention", retention}, {"clients", clients}, {"workers", workers}, {"groups", groups}, {"gates", gates}}

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

// comparePeers measures every peer with every workload. An engine without peers is compared with direct SQL.
func comparePeers(ctx context.Context, p *plan) error {
	if !p.Engine.Drivers {
		return compare(ctx, p)
	}
	return rivals.Run(ctx, p.Setup)
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
	var o measure.Options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	socket := flags.String("socket", "", "measure the sidecar that listens there, and nothing else")
	flags.StringVar(&o.Bin, "bin", "", "the qsidecar to measure on servers of its own, beside the direct SQL")
	flags.StringVar(&o.Engines, "engine", engines.Names(), "the databases, with commas between")
	flags.StringVar(&o.Parts, "parts", partNames(parts[1:]), "what to measure, with commas between: also "+parts[0].name)
	flags.IntVar(&o.Workers, "workers", 32, "connections to the sidecar")
	flags.IntVar(&o.Jobs, "jobs", 20_000, "jobs of each measurement")
	flags.IntVar(&o.Batch, "batch", 100, "jobs in each request of the batch measurements")
	flags.IntVar(&o.Rounds, "rounds", 3, "how often the interleaved measurements run")
	flags.IntVar(&o.Rows, "rows", 0, "ready, scheduled and dead rows of the large table, each; 0: a number for each engine")
	flags.IntVar(&o.Held, "held", 0, "jobs that are worked while a snapshot is held; 0: a number for each engine")
	flags.IntVar(&o.Finish, "finished", 1_000_000, "done rows that are pruned, and as many dead ones")
	flags.IntVar(&o.Blocked, "blocked", 1_000_000, "blocked jobs of one group, and jobs of the large tenant")
	flags.DurationVar(&o.Span, "span", time.Minute, "groups, gates: how long the small tenants enqueue, and the rate is used")
	flags.IntVar(&o.Wakes, "wakes", 100, "enqueues to a worker that waits, for each way")
	flags.BoolVar(&o.Fast, "fast", false, "servers that sync nothing: for tests of the benchmark itself")
	flags.StringVar(&o.Only, "only", "*/*", "rivals: the measurements, as patterns PEER/WORKLOAD with commas between")
	flags.DurationVar(&o.Cell, "cell", time.Second, "rivals, workers: the time that one measurement takes, about")
	flags.DurationVar(&o.Time, "time", 55*time.Minute, "rivals: no new round begins if it would end later")
	flags.StringVar(&o.File, "results", "", "the file to write the ratios and the tables of rivals to; the plot is beside it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("what is %q? Everything is a flag", flags.Arg(0))
	case o.Workers < 1 || o.Jobs < 1 || o.Batch < 1 || o.Batch > 1000 || o.Rounds < 1 || o.Wakes < 1 || o.Finish < 1 || o.Blocked < 1 || o.Span <= 0 || o.Rows < 0 || o.Held < 0:
		return errors.New("every size is at least 1 (-rows and -held: 0), and -batch at most 1000")
	case *socket != "":
		return alone(out, *socket, o)
	case o.Bin == "":
		return errors.New("give -bin, the program to measure, or -socket, a running one")
	}
	bin, err := filepath.Abs(o.Bin)
	if err != nil {
		return err
	}
	o.Bin = bin
	chosen, err := engines.Named(o.Engines)
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(o.Parts, ",") {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("no part %q: there are %s", name, partNames(parts))
		}
	}
	return measureAll(ctx, out, chosen, o)
}

// measureAll measures the engines one after another, and writes the file, if there is one.
func measureAll(ctx context.Context, out io.Writer, chosen []measure.Engine, o measure.Options) error {
	all := &measure.Report{Writer: out}
	var failure error // the other engines continue
	for _, e := range chosen {
		err := measureEngine(ctx, all, e, o)
		if errors.Is(err, measure.ErrUnavailable) {
			all.Unavailable(e.Name, err)
		} else if err != nil {
			failure = errors.Join(failure, fmt.Errorf("%s: %w", e.Name, err))
		}
	}
	if o.File != "" {
		failure = errors.Join(failure, all.Write(o.File))
	}
	return errors.Join(failure, all.Err)
}

// plan is what the parts need to measure an engine.
type plan struct{ *measure.Setup }

// measureEngine runs the parts on one engine.
func measureEngine(ctx context.Context, out *measure.Report, e measure.Engine, o measure.Options) (err error) {
	s, err := e.Start(ctx, o.Fast)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	o.Rows, o.Held = cmp.Or(o.Rows, e.Rows), max(cmp.Or(o.Held, e.Held), snapshotSteps)
	p := &plan{&measure.Setup{Options: o, Engine: e, Server: s, Out: out}}
	p.Out.Title(s.Version(), o)
	wanted := strings.Split(o.Parts, ",")
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
func alone(out io.Writer, socket string, o measure.Options) error {
	s := &measure.Sidecar{Socket: socket}
	queue := fmt.Sprintf("bench-%d", os.Getpid())
	r := &measure.Report{Writer: out}
	r.Head()
	for _, m := range ownSteps(o, queue) {
		f, err := s.Load(o.Workers, m.jobs, m.task, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		r.Row(m.name, []measure.Figures{f})
	}
	return r.Err
}
