// Command bench measures a sidecar: worker connections that enqueue, claim and ack
// no-op jobs of 100 bytes; jobs per second and latencies are printed.
//
//	bench -socket PATH                   a sidecar that runs already
//	bench -bin ../bin/qsidecar           an own PostgreSQL and sidecar, beside the direct SQL, interleaved
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync/atomic"
)

func main() {
	socket := flag.String("socket", "", "the socket of a sidecar that runs already")
	bin := flag.String("bin", "", "the qsidecar to measure on an own PostgreSQL, beside the direct SQL")
	version := flag.String("postgres", "18", "PostgreSQL's major version")
	workers := flag.Int("workers", 32, "connections")
	jobs := flag.Int("jobs", 20_000, "jobs of each measurement")
	batch := flag.Int("batch", 100, "jobs in each request of the batch measurements")
	rounds := flag.Int("rounds", 2, "how often the interleaved measurements run")
	flag.Parse()
	var err error
	switch {
	case *bin != "":
		err = compare(context.Background(), *bin, *version, *workers, *jobs, *batch, *rounds)
	case *socket != "":
		err = run(*socket, *workers, *jobs, *batch)
	default:
		err = fmt.Errorf("give -socket or -bin")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures a sidecar that runs already.
func run(socket string, workers, jobs, batch int) error {
	b := &bench{socket: socket, workers: workers, queue: fmt.Sprintf("bench-%d", os.Getpid())}
	steps := []struct {
		name string
		n    int
		f    func(w *wire, todo *atomic.Int64, lat *latencies) error
	}{
		{fmt.Sprintf("enqueue in batches of %d", batch), 2 * jobs, b.enqueue(batch)},
		{"claim one + ack one", jobs, b.work(1)},
		{fmt.Sprintf("claim and ack batches of %d", batch), jobs, b.work(batch)},
		{"enqueue one", jobs, b.enqueue(1)},
		{"claim one + ack one", jobs, b.work(1)},
	}
	for _, s := range steps {
		if _, err := b.measure(s.name, s.n, s.f); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}
