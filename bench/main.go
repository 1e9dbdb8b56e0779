// Command bench measures a running sidecar: worker connections that enqueue,
// claim and ack no-op jobs of 100 bytes, and prints jobs per second and latencies.
//
//	bench -socket PATH -workers 32 -jobs 20000
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

func main() {
	socket := flag.String("socket", os.Getenv("QSIDECAR_SOCKET"), "the sidecar's socket")
	workers := flag.Int("workers", 32, "connections")
	jobs := flag.Int("jobs", 20_000, "jobs of each measurement")
	batch := flag.Int("batch", 100, "jobs in each request of the batch measurements")
	flag.Parse()
	if err := run(*socket, *workers, *jobs, *batch); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

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
		if err := b.measure(s.name, s.n, s.f); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

type bench struct {
	socket  string
	workers int
	queue   string
}

// measure has all workers carry out f until todo is used up.
func (b *bench) measure(name string, n int, f func(*wire, *atomic.Int64, *latencies) error) error {
	conns := make([]*wire, b.workers)
	for i := range conns {
		w, err := dial(b.socket)
		if err != nil {
			return err
		}
		defer func() { _ = w.conn.Close() }() // the measurement is over by then
		conns[i] = w
	}
	var todo atomic.Int64
	todo.Store(int64(n))
	var wg sync.WaitGroup
	lats := make([]latencies, b.workers)
	errs := make(chan error, b.workers)
	began := time.Now()
	for i, w := range conns {
		wg.Go(func() {
			if err := f(w, &todo, &lats[i]); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	select {
	case err := <-errs:
		return err
	default:
	}
	all := latencies(slices.Concat(lats...))
	fmt.Printf("%-32s %8.0f jobs/s   request p50 %v  p99 %v\n", name, float64(n)/took.Seconds(), all.at(0.5), all.at(0.99))
	return nil
}

func (b *bench) enqueue(batch int) func(*wire, *atomic.Int64, *latencies) error {
	payload := make([]byte, 100)
	return func(w *wire, todo *atomic.Int64, lat *latencies) error {
		jobs := make([]protocol.NewJob, batch)
		for i := range jobs {
			jobs[i] = protocol.NewJob{Queue: b.queue, Payload: payload}
		}
		req := &protocol.Request{Op: protocol.OpEnqueue, Jobs: jobs}
		if batch == 1 {
			req = &protocol.Request{Op: protocol.OpEnqueue, Job: jobs[0]}
		}
		for todo.Add(-int64(batch)) >= 0 {
			began := time.Now()
			if _, err := w.call(req); err != nil {
				return err
			}
			*lat = append(*lat, time.Since(began))
		}
		return nil
	}
}

func (b *bench) work(batch int) func(*wire, *atomic.Int64, *latencies) error {
	return func(w *wire, todo *atomic.Int64, lat *latencies) error {
		claim := &protocol.Request{Op: protocol.OpClaim, Queue: b.queue, Max: protocol.Some(int64(batch))}
		for todo.Load() > 0 {
			began := time.Now()
			r, err := w.call(claim)
			if err != nil {
				return err
			}
			if len(r.Jobs) == 0 {
				return nil // the others have the rest
			}
			leases := make([]string, len(r.Jobs))
			for i := range r.Jobs {
				leases[i] = r.Jobs[i].Lease
			}
			ack := &protocol.Request{Op: protocol.OpAck, Leases: leases}
			if batch == 1 {
				ack = &protocol.Request{Op: protocol.OpAck, Lease: leases[0]}
			}
			if _, err := w.call(ack); err != nil {
				return err
			}
			*lat = append(*lat, time.Since(began))
			todo.Add(-int64(len(leases)))
		}
		return nil
	}
}

type latencies []time.Duration

// at is the p-quantile, rounded to microseconds.
func (l latencies) at(p float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	slices.Sort(l)
	return l[int(p*float64(len(l)-1))].Round(time.Microsecond)
}
