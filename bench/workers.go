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
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/proc"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// The ways in which a worker acks, in the order of the table.
var acks = []string{"sync", "behind"}

// workerCell is a language's worker with so many threads.
type workerCell struct {
	name    string
	threads int
	program *workerProgram
	jobs    map[string]int       // of the next measurement, by the way it acks
	got     map[string][]figures // of each round
}

// workers measures the worker of each client: with each ack before the next job, and behind it, in turn.
func workers(ctx context.Context, p *place) (err error) {
	repository, err := local.Repository()
	if err != nil {
		return err
	}
	x, err := p.site(ctx, p.server, "workers")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	var cells []*workerCell
	for _, l := range languages {
		argv, env, err := l.command(ctx, repository)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		w, err := startWorkers(ctx, append(argv, "worker"), append(env, "QSIDECAR_SOCKET="+x.s.socket))
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		defer func() { err = errors.Join(err, w.stop()) }()
		for _, threads := range []int{1, 8} {
			cells = append(cells, &workerCell{
				name: fmt.Sprintf("%s, %d at once", l.name, threads), threads: threads, program: w,
				jobs: map[string]int{}, got: map[string][]figures{},
			})
		}
	}
	for round := range p.rounds + 1 { // the first one finds the numbers of jobs
		for _, c := range cells {
			for _, ack := range acks {
				f, err := p.worker(ctx, x, c, ack)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", c.name, ack, err)
				}
				c.jobs[ack] = min(int(f.rate()*p.cell.Seconds()), maxJobs)
				if round > 0 {
					c.got[ack] = append(c.got[ack], f)
				}
			}
		}
	}
	p.out.workers(cells)
	return p.out.err
}

// worker lets a worker do the next number of jobs of its cell.
func (p *place) worker(ctx context.Context, x *site, c *workerCell, ack string) (figures, error) {
	n := max(c.jobs[ack], p.batch, 2)                                         // the time is that between two jobs
	filled, err := x.s.load(p.workers, n, enqueue(clientQueue, p.batch), nil) // whole batches
	if err != nil {
		return figures{}, err
	}
	watch := p.watch(ctx, x.s, x.d)
	look := func() (usage, error) { // the worker instead of the benchmark itself
		u, err := watch()
		var failed error
		u.self, failed = proc.CPU(c.program.pid)
		return u, errors.Join(err, failed)
	}
	took := time.Duration(0)
	f, err := timed(1, look, func(int) (err error) {
		took, err = c.program.work(filled.jobs, c.threads, ack)
		return err
	})
	f.jobs, f.took = filled.jobs, took
	return f, errors.Join(err, x.s.empty(clientQueue))
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

// workers prints the table of the workers.
func (r *report) workers(cells []*workerCell) {
	r.section("the worker of each client in one process: jobs/s if each ack is waited for (sync) and if not (behind)\n")
	r.line("%-22s %16s  %28s   %s", "", "jobs/s", "behind / sync", "CPU, µs a job: sidecar, database, worker")
	r.line("%-22s %8s %8s  %8s %19s  %25s %25s", "", "sync", "behind", "median", "(least … most)", "sync", "behind")
	for _, c := range cells {
		ratio := ratios(c.got["behind"], c.got["sync"])
		r.line("%-22s %8.0f %8.0f  %8.2f %19s  %s %s", c.name, rate(c.got["sync"]), rate(c.got["behind"]), median(ratio),
			fmt.Sprintf("(%.2f … %.2f)", slices.Min(ratio), slices.Max(ratio)), cpus(c.got["sync"]), cpus(c.got["behind"]))
	}
}

func rate(all []figures) float64 { return medianOf(all, figures.rate) }

// cpus prints the CPU time of a job in each process.
func cpus(all []figures) string {
	text := ""
	for _, of := range []func(usage) time.Duration{
		func(u usage) time.Duration { return u.sidecar }, func(u usage) time.Duration { return u.database }, func(u usage) time.Duration { return u.self },
	} {
		text += fmt.Sprintf(" %8.1f", medianOf(all, func(f figures) float64 { return micros(of(f.used)) / float64(f.jobs) }))
	}
	return text[1:]
}

func medianOf(all []figures, of func(figures) float64) float64 {
	x := make([]float64, len(all))
	for i, f := range all {
		x[i] = of(f)
	}
	return median(x)
}
