package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/bench/internal/proc"
	"github.com/qsidecar/qsidecar/bench/rivals"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// The ways in which a worker acks, in the order of the table.
var acks = []string{"sync", "behind"}

// workerCell is a language's worker with so many threads.
type workerCell struct {
	name    string
	threads int
	program *workerProgram
	jobs    map[string]int               // of the next measurement, by the way it acks
	got     map[string][]measure.Figures // of each round
}

// workers measures the worker of each client: with each ack before the next job, and behind it, in turn.
func workers(ctx context.Context, p *plan) (err error) {
	repository, err := local.Repository()
	if err != nil {
		return err
	}
	x, err := p.Site(ctx, p.Server, "workers")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	var cells []*workerCell
	for _, l := range languages {
		argv, env, err := l.command(ctx, repository)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		for _, kind := range l.workers {
			name := strings.TrimSpace(l.name + " " + kind)
			w, err := startWorkers(ctx, append(slices.Clip(argv), "worker", kind), append(slices.Clip(env), "QSIDECAR_SOCKET="+x.Sidecar.Socket))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			defer func() { err = errors.Join(err, w.stop()) }()
			for _, threads := range []int{1, 8, 32} {
				cells = append(cells, &workerCell{
					name: fmt.Sprintf("%s, %d at once", name, threads), threads: threads, program: w,
					jobs: map[string]int{}, got: map[string][]measure.Figures{},
				})
			}
		}
	}
	for round := range p.Rounds + 1 { // the first one finds the numbers of jobs
		for _, c := range cells {
			for _, ack := range acks {
				f, err := p.worker(ctx, x, c, ack)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", c.name, ack, err)
				}
				c.jobs[ack] = min(int(f.Rate()*p.Cell.Seconds()), rivals.MaxJobs)
				if round > 0 {
					c.got[ack] = append(c.got[ack], f)
				}
			}
		}
	}
	reportWorkers(p.Out, cells)
	return p.Out.Err
}

// worker lets a worker do the next number of jobs of its cell.
func (p *plan) worker(ctx context.Context, x *measure.Site, c *workerCell, ack string) (measure.Figures, error) {
	n := max(c.jobs[ack], p.Batch, 2)                                                       // the time is that between two jobs
	filled, err := x.Sidecar.Load(p.Workers, n, measure.Enqueue(clientQueue, p.Batch), nil) // whole batches
	if err != nil {
		return measure.Figures{}, err
	}
	watch := p.Watch(ctx, x.Sidecar, x.Database)
	look := func() (measure.Usage, error) { // the worker instead of the benchmark itself
		u, err := watch()
		var failed error
		u.Self, failed = proc.CPU(c.program.pid)
		return u, errors.Join(err, failed)
	}
	took := time.Duration(0)
	f, err := measure.Timed(1, look, func(int) (err error) {
		took, err = c.program.work(filled.Jobs, c.threads, ack)
		return err
	})
	f.Jobs, f.Took = filled.Jobs, took
	return f, errors.Join(err, x.Sidecar.Empty(clientQueue))
}

// workerProgram is a process that runs a worker whenever it is asked to.
type workerProgram struct {
	pid  int
	in   io.WriteCloser
	out  *bufio.Reader
	wait func() error
}

func startWorkers(ctx context.Context, argv, env []string) (*workerProgram, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &workerProgram{cmd.Process.Pid, in, bufio.NewReader(out), cmd.Wait}, nil
}

func (w *workerProgram) stop() error { return errors.Join(w.in.Close(), w.wait()) }

// work returns the time from the begin of the first job to that of the last one.
func (w *workerProgram) work(jobs, threads int, ack string) (time.Duration, error) {
	if _, err := fmt.Fprintln(w.in, threads, ack); err != nil {
		return 0, err
	}
	line, err := w.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return parseLoop(line, jobs)
}

// reportWorkers prints the table of the workers.
func reportWorkers(r *measure.Report, cells []*workerCell) {
	r.Section("the worker of each client in one process: jobs/s if each ack is waited for (sync) and if not (behind)\n")
	r.Line("%-22s %16s  %28s   %s", "", "jobs/s", "behind / sync", "CPU, µs a job: sidecar, database, worker")
	r.Line("%-22s %8s %8s  %8s %19s  %25s %25s", "", "sync", "behind", "median", "(least … most)", "sync", "behind")
	for _, c := range cells {
		ratio := measure.Ratios(c.got["behind"], c.got["sync"])
		r.Line("%-22s %8.0f %8.0f  %8.2f %19s  %s %s", c.name, rate(c.got["sync"]), rate(c.got["behind"]), measure.Median(ratio),
			fmt.Sprintf("(%.2f … %.2f)", slices.Min(ratio), slices.Max(ratio)), cpus(c.got["sync"]), cpus(c.got["behind"]))
	}
}

func rate(all []measure.Figures) float64 { return medianOf(all, measure.Figures.Rate) }

// cpus prints the CPU time of a job in each process.
func cpus(all []measure.Figures) string {
	text := ""
	for _, of := range []func(measure.Usage) time.Duration{
		func(u measure.Usage) time.Duration { return u.Sidecar }, func(u measure.Usage) time.Duration { return u.Database }, func(u measure.Usage) time.Duration { return u.Self },
	} {
		text += fmt.Sprintf(" %8.1f", medianOf(all, func(f measure.Figures) float64 { return measure.Micros(of(f.Used)) / float64(f.Jobs) }))
	}
	return text[1:]
}

func medianOf(all []measure.Figures, of func(measure.Figures) float64) float64 {
	x := make([]float64, len(all))
	for i, f := range all {
		x[i] = of(f)
	}
	return measure.Median(x)
}
