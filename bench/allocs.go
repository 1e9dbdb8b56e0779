package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/qsidecar/qsidecar/bridge"
)

// loadEnv makes this program a load generator for the socket that it names. It is a separate
// process, because the benchmark counts the allocations of a sidecar in its own process. With the
// step "echo" it is the server of openEcho instead, and with "sqlite" a rival that works the table in that file.
const loadEnv = "QSIDECAR_BENCH_LOAD"

// allocations runs the sidecar's bridge in this process and counts its allocations.
func allocations(ctx context.Context, p *place) (err error) {
	d, err := p.server.Database(ctx, "allocs")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	store, err := d.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	dir, err := os.MkdirTemp("", "qsbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	socket := filepath.Join(dir, "s")
	b, err := bridge.New(bridge.Options{
		Databases: map[string]bridge.Database{"main": {Backend: store}},
		Queues:    map[string]bridge.Queue{"*": {}},
		Sockets:   []bridge.Socket{{Path: socket}},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	ran := make(chan error, 1)
	go func() { ran <- b.Run(run) }()
	defer func() { stop(); err = errors.Join(err, <-ran) }()
	<-b.Ready()
	return p.countAllocations(ctx, socket)
}

func (p *place) countAllocations(ctx context.Context, socket string) error {
	p.out.section("the bridge and the backend alone, allocations a job %25s %12s %12s", "number", "bytes", "collections")
	for _, s := range ownSteps(p.options, "bench") {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		jobs, err := p.loadElsewhere(ctx, socket, s.key)
		if err != nil {
			return err
		}
		runtime.ReadMemStats(&after)
		n := float64(jobs)
		p.out.line("%-60s %16.1f %12.0f %12d", s.name, float64(after.Mallocs-before.Mallocs)/n,
			float64(after.TotalAlloc-before.TotalAlloc)/n, after.NumGC-before.NumGC)
		if s.key == keyMany {
			break // the remaining steps repeat
		}
	}
	return p.out.err
}

// loadElsewhere runs a step in another process and returns its number of jobs.
func (p *place) loadElsewhere(ctx context.Context, socket, key string) (jobs int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), loadEnv+"="+fmt.Sprintf("%s %s %d %d %d", socket, key, p.workers, p.jobs, p.batch))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("the load generator: %w\n%s", err, out)
	}
	if _, err := fmt.Sscan(string(out), &jobs); err != nil || jobs < 1 {
		return 0, fmt.Errorf("the load generator printed %q: %w", out, err)
	}
	return jobs, nil
}

// generate is the main function of the other process.
func generate(what string) error {
	var socket, key string
	var o options
	if _, err := fmt.Sscanf(what, "%s %s %d %d %d", &socket, &key, &o.workers, &o.jobs, &o.batch); err != nil {
		return fmt.Errorf("%s=%q: %w", loadEnv, what, err)
	}
	switch key {
	case "echo":
		return serveEcho(socket)
	case "sqlite":
		return workLite(socket)
	}
	s := &sidecar{socket: socket}
	for _, x := range ownSteps(o, "bench") {
		if x.key != key {
			continue
		}
		f, err := s.load(o.workers, x.jobs, x.task, nil)
		if err == nil {
			_, err = fmt.Println(f.jobs)
		}
		return err
	}
	return fmt.Errorf("no step %q", key)
}
