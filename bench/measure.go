package main

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// bench is one sidecar under measurement.
type bench struct {
	socket  string
	workers int
	queue   string
}

// measure has all workers carry out f until todo is used up, and returns jobs per second.
func (b *bench) measure(name string, n int, f func(*wire, *atomic.Int64, *latencies) error) (float64, error) {
	conns := make([]*wire, b.workers)
	for i := range conns {
		w, err := dial(b.socket)
		if err != nil {
			return 0, err
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
		return 0, err
	default:
	}
	all := latencies(slices.Concat(lats...))
	rate := float64(n-max(0, int(todo.Load()))) / took.Seconds()
	fmt.Printf("%-44s %8.0f jobs/s   p50 %v  p99 %v\n", name, rate, all.at(0.5), all.at(0.99))
	return rate, nil
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

// work claims and acks; a latency is that of one claim and its ack.
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
