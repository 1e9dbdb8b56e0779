package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// payloadSize is the size of every job's payload, in bytes.
const payloadSize = 100

// figures are the result of one measurement.
type figures struct {
	jobs  int
	took  time.Duration
	first latencies // of an enqueue or a claim
	ack   latencies
	used  usage
}

func (f figures) rate() float64 { return float64(f.jobs) / f.took.Seconds() }

// latencies are the waiting times of requests.
type latencies []time.Duration

// at returns the p-quantile, or 0 if there are none.
func (l latencies) at(p float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	slices.Sort(l)
	return l[int(p*float64(len(l)-1))]
}

// task is what each connection does until todo is used up.
type task func(w *wire, todo *atomic.Int64, f *figures) error

// load runs a task on that many connections for n jobs. look, which can be nil, is called before
// and after.
func (s *sidecar) load(workers, n int, t task, look func() (usage, error)) (figures, error) {
	conns := make([]*wire, workers)
	for i := range conns {
		w, err := dial(s.socket)
		if err != nil {
			return figures{}, err
		}
		defer func() { _ = w.conn.Close() }() // the measurement is over
		conns[i] = w
	}
	var todo atomic.Int64
	todo.Store(int64(n))
	got := make([]figures, workers)
	total, err := timed(workers, look, func(i int) error { return t(conns[i], &todo, &got[i]) })
	for _, f := range got {
		total.jobs += f.jobs
		total.first, total.ack = append(total.first, f.first...), append(total.ack, f.ack...)
	}
	return total, err
}

// timed runs f that many times at once.
func timed(workers int, look func() (usage, error), f func(i int) error) (total figures, err error) {
	var before, after usage
	if look != nil {
		if before, err = look(); err != nil {
			return total, err
		}
	}
	errs := make([]error, workers)
	var all sync.WaitGroup
	began := time.Now()
	for i := range workers {
		all.Go(func() { errs[i] = f(i) })
	}
	all.Wait()
	total.took = time.Since(began)
	if look != nil {
		if after, err = look(); err != nil {
			return total, err
		}
	}
	total.used = after.since(before)
	return total, errors.Join(errs...)
}

// direct lets a rival work until its table is empty.
func (r rival) direct(ctx context.Context, look func() (usage, error)) (_ figures, err error) {
	work := make([]func() (int, error), r.workers)
	for i := range work {
		w, end, err := r.session(ctx)
		if err != nil {
			return figures{}, err
		}
		defer func() { _ = end() }() // the measurement is over
		work[i] = w
	}
	var done atomic.Int64
	f, err := timed(r.workers, look, func(i int) error {
		for {
			n, err := work[i]()
			if err != nil || n == 0 {
				return err
			}
			done.Add(int64(n))
		}
	})
	f.jobs = int(done.Load())
	return f, err
}

// enqueue returns a task that stores jobs, batch jobs in a request.
func enqueue(queue string, batch int) task {
	return func(w *wire, todo *atomic.Int64, f *figures) error {
		jobs := make([]protocol.NewJob, batch)
		for i := range jobs {
			jobs[i] = protocol.NewJob{Queue: queue, Payload: make([]byte, payloadSize)}
		}
		req := &protocol.Request{Op: protocol.OpEnqueue, Jobs: jobs}
		if batch == 1 {
			req = &protocol.Request{Op: protocol.OpEnqueue, Job: jobs[0]}
		}
		for todo.Add(-int64(batch)) > -int64(batch) {
			began := time.Now()
			if _, err := w.call(req); err != nil {
				return err
			}
			f.first = append(f.first, time.Since(began))
			f.jobs += batch
		}
		return nil
	}
}

// work returns a task that claims and acks jobs, batch jobs in a request, until todo is used up or
// a claim finds none.
func work(queue string, batch int) task {
	return func(w *wire, todo *atomic.Int64, f *figures) error {
		for todo.Load() > 0 || len(w.reply.Jobs) > 0 {
			claims, began := len(w.reply.Jobs) == 0, time.Now()
			n, err := w.next(queue, batch, 0, func(left int) bool { return todo.Add(-int64(left)) > 0 })
			if err != nil {
				return err
			}
			f.jobs += n
			switch {
			case !claims:
				f.ack = append(f.ack, time.Since(began))
			case len(w.reply.Jobs) == 0:
				return nil
			default:
				f.first = append(f.first, time.Since(began))
			}
		}
		return nil
	}
}

// next acks the jobs of the last reply and claims the next ones, in one round trip. If there are no
// jobs to ack, it only claims, and waits for jobs that long. It claims nothing unless more, which gets
// the number of jobs that are acked, returns true.
func (w *wire) next(queue string, batch int, wait time.Duration, more func(acked int) bool) (acked int, err error) {
	maximum := protocol.Some(int64(batch))
	acked = len(w.reply.Jobs)
	if acked == 0 {
		_, err := w.call(&protocol.Request{Op: protocol.OpClaim, Queue: queue, Max: maximum, WaitMS: wait.Milliseconds()})
		return 0, err
	}
	req := acking(&w.reply)
	if more(acked) {
		req.Claim = &protocol.NextClaim{Queue: queue, Max: maximum}
	}
	r, err := w.call(req)
	if err != nil {
		return 0, err
	}
	if got := r.Settled; got == nil || got.Count != int64(acked) {
		return 0, fmt.Errorf("of %d acked jobs %+v were delivered again", acked, got)
	}
	if r.ClaimError != nil {
		return 0, fmt.Errorf("the claim of an ack: %w", r.ClaimError)
	}
	return acked, nil
}

// acking returns the ack of all jobs of a claim's reply.
func acking(r *protocol.Reply) *protocol.Request {
	if len(r.Jobs) == 1 {
		return &protocol.Request{Op: protocol.OpAck, Lease: r.Jobs[0].Lease}
	}
	leases := make([]string, len(r.Jobs))
	for i := range r.Jobs {
		leases[i] = r.Jobs[i].Lease
	}
	return &protocol.Request{Op: protocol.OpAck, Leases: leases}
}
