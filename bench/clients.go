package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testserver/pythonenv"
)

// clientQueue is the queue of the programs in other languages.
const clientQueue = "clients"

// language is a client that is measured in one process, if driver isn't empty beside that language's own database driver.
// Its program in the directory clients is called with "sidecar" or "driver" and how many jobs to
// claim and ack at a time. It works until the queue is empty, and prints the number of jobs and the
// seconds. It uses QSIDECAR_SOCKET, QSIDECAR_CODEC and BENCH_DATABASE.
type language struct {
	name, driver string
	codecs       []string
	workers      []string // the kinds of its worker; "": the only one, or that with threads
	// command returns the program's arguments and its additional environment.
	command func(ctx context.Context, repository string) (argv, env []string, err error)
}

var languages = []language{
	{"Python", "psycopg", []string{"msgpack", "json"}, []string{"", "async"}, pythonCommand},
	{"Ruby", "pg", []string{"msgpack", "json"}, []string{""}, rubyCommand},
	{"Node", "", []string{"json"}, []string{""}, nodeCommand}, // its standard library has no driver
	{"Go", "pgx", []string{"msgpack"}, []string{""}, goCommand},
}

func pythonCommand(ctx context.Context, repository string) (argv, env []string, err error) {
	python, err := pythonenv.New(ctx, "python3", pythonenv.Tools...)
	return []string{python, filepath.Join(repository, "bench", "clients", "loop.py")},
		[]string{"PYTHONPATH=" + filepath.Join(repository, "clients", "python")}, err
}

func rubyCommand(_ context.Context, repository string) (argv, env []string, err error) {
	return []string{"ruby", "-I", filepath.Join(repository, "clients", "ruby", "lib"), filepath.Join(repository, "bench", "clients", "loop.rb")}, nil, nil
}

func nodeCommand(_ context.Context, repository string) (argv, env []string, err error) {
	return []string{"node", filepath.Join(repository, "bench", "clients", "loop.mjs")}, nil, nil
}

func goCommand(_ context.Context, repository string) (argv, env []string, err error) {
	return []string{"go", "run", "-C", filepath.Join(repository, "bench"), "-trimpath", "./clients/loop"}, nil, nil
}

// clients measures one process of each client, one job at a time and in batches, beside the same
// loop with its language's own driver.
func clients(ctx context.Context, p *plan) (err error) {
	if !p.Engine.Drivers {
		return nil
	}
	repository, err := local.Repository()
	if err != nil {
		return err
	}
	x, err := p.Site(ctx, p.Server, "clients")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	d, s := x.Database, x.Sidecar
	p.Out.Section("one process of each client, jobs/s %31s %10s", "one", fmt.Sprintf("by %d", p.Batch))
	for _, l := range languages {
		argv, env, err := l.command(ctx, repository)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		env = append(env, "QSIDECAR_SOCKET="+s.Socket, "BENCH_DATABASE="+d.URL())
		for _, codec := range l.codecs {
			fill := func(n int) (int, error) {
				f, err := s.Load(p.Workers, n, measure.Enqueue(clientQueue, min(n, p.Batch)), nil)
				return f.Jobs, err // whole batches
			}
			err := p.loops(ctx, l.name+", the client, "+codec, fill, append(argv, "sidecar"), append(env, "QSIDECAR_CODEC="+codec))
			if err != nil {
				return err
			}
		}
		if l.driver == "" {
			continue
		}
		fill := func(n int) (int, error) { return n, d.Fill(ctx, n) }
		if err := p.loops(ctx, l.name+", "+l.driver+", two statements", fill, append(argv, "driver"), env); err != nil {
			return err
		}
	}
	return errors.Join(p.Out.Err, s.Empty(clientQueue))
}

// loops prints the median rates of a program, one job at a time and in batches.
func (p *plan) loops(ctx context.Context, name string, fill func(n int) (int, error), argv, env []string) error {
	var rates [2][]float64
	for range p.Rounds {
		for i, x := range []struct{ at, jobs int }{{1, p.Jobs / 4}, {p.Batch, p.Jobs}} {
			jobs, err := fill(max(1, x.jobs))
			if err != nil {
				return fmt.Errorf("%s: filling its queue: %w", name, err)
			}
			took, err := loop(ctx, jobs, append(slices.Clip(argv), strconv.Itoa(x.at)), env)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			rates[i] = append(rates[i], float64(jobs)/took.Seconds())
		}
	}
	p.Out.Line("%-60s %10.0f %10.0f", name, measure.Median(rates[0]), measure.Median(rates[1]))
	return nil
}

// loop runs a program once. It must process all jobs.
func loop(ctx context.Context, jobs int, argv, env []string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, err
	}
	return parseLoop(string(out), jobs)
}

// parseLoop reads what a program printed: how many jobs it processed, and the seconds.
func parseLoop(out string, jobs int) (time.Duration, error) {
	var done int
	var seconds float64
	if _, err := fmt.Sscan(out, &done, &seconds); err != nil {
		return 0, fmt.Errorf("it printed %q: %w", out, err)
	}
	if done != jobs {
		return 0, fmt.Errorf("worked %d jobs of %d", done, jobs)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}
