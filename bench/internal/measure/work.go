package measure

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

// PayloadSize is the size of every job's payload, in bytes.
const PayloadSize = 100

// Figures are the result of one measurement.
type Figures struct {
	Jobs  int
	Took  time.Duration
	First Latencies // of an enqueue or a claim
	ack   Latencies
	Used  Usage
}

// Rate returns the jobs of a second.
func (f Figures) Rate() float64 { return float64(f.Jobs) / f.Took.Seconds() }

// Latencies are the waiting times of requests.
type Latencies []time.Duration

// At returns the p-quantile, or 0 if there are none.
func (l Latencies) At(p float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	slices.Sort(l)
	return l[int(p*float64(len(l)-1))]
}

// Task is what each connection does until todo is used up.
type Task func(w *Wire, todo *atomic.Int64, f *Figures) error

// Load runs a task on that many connections for n jobs. look, which can be nil, is called before
// and after.
func (s *Sidecar) Load(workers, n int, t Task, look func() (Usage, error)) (Figures, error) {
	conns := make([]*Wire, workers)
	for i := range conns {
		w, err := Dial(s.Socket)
		if err != nil {
			return Figures{}, err
		}
		defer func() { _ = w.Conn.Close() }() // the measurement is over
		conns[i] = w
	}
	var todo atomic.Int64
	todo.Store(int64(n))
	got := make([]Figures, workers)
	total, err := Timed(workers, look, func(i int) error { return t(conns[i], &todo, &got[i]) })
	for _, f := range got {
		total.Jobs += f.Jobs
		total.First, total.ack = append(total.First, f.First...), append(total.ack, f.ack...)
	}
	return total, err
}

// Timed runs f that many times at once.
func Timed(workers int, look func() (Usage, error), f func(i int) error) (total Figures, err error) {
	var before, after Usage
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
	total.Took = time.Since(began)
	if look != nil {
		if after, err = look(); err != nil {
			return total, err
		}
	}
	total.Used = after.Since(before)
	return total, errors.Join(errs...)
}

// Direct lets a rival work until its table is empty.
func (r Rival) Direct(ctx context.Context, look func() (Usage, error)) (_ Figures, err error) {
	work := make([]func() (int, error), r.Workers)
	for i := range work {
		w, end, err := r.Session(ctx)
		if err != nil {
			return Figures{}, err
		}
		defer func() { _ = end() }() // the measurement is over
		work[i] = w
	}
	var done atomic.Int64
	f, err := Timed(r.Workers, look, func(i int) error {
		for {
			n, err := work[i]()
			if err != nil || n == 0 {
				return err
			}
			done.Add(int64(n))
		}
	})
	f.Jobs = int(done.Load())
	return f, err
}

// Enqueue returns a task that stores jobs, batch jobs in a request.
func Enqueue(queue string, batch int) Task {
	return func(w *Wire, todo *atomic.Int64, f *Figures) error {
		jobs := make([]protocol.NewJob, batch)
		for i := range jobs {
			jobs[i] = protocol.NewJob{Queue: queue, Payload: make([]byte, PayloadSize)}
		}
		req := &protocol.Request{Op: protocol.OpEnqueue, Jobs: jobs}
		if batch == 1 {
			req = &protocol.Request{Op: protocol.OpEnqueue, Job: jobs[0]}
		}
		for todo.Add(-int64(batch)) > -int64(batch) {
			began := time.Now()
			if _, err := w.Call(req); err != nil {
				return err
			}
			f.First = append(f.First, time.Since(began))
			f.Jobs += batch
		}
		return nil
	}
}

// Work returns a task that claims and acks jobs, batch jobs in a request, until todo is used up or
// a claim finds none.
func Work(queue string, batch int) Task {
	return func(w *Wire, todo *atomic.Int64, f *Figures) error {
		for todo.Load() > 0 || len(w.Reply.Jobs) > 0 {
			claims, began := len(w.Reply.Jobs) == 0, time.Now()
			n, err := w.Next(queue, batch, 0, func(left int) bool { return todo.Add(-int64(left)) > 0 })
			if err != nil {
				return err
			}
			f.Jobs += n
			switch {
			case !claims:
				f.ack = append(f.ack, time.Since(began))
			case len(w.Reply.Jobs) == 0:
				return nil
			default:
				f.First = append(f.First, time.Since(began))
			}
		}
		return nil
	}
}

// Next acks the jobs of the last reply and claims the next ones, in one round trip. If there are no
// jobs to ack, it only claims, and waits for jobs that long. It claims nothing unless more, which gets
// the number of jobs that are acked, returns true.
func (w *Wire) Next(queue string, batch int, wait time.Duration, more func(acked int) bool) (acked int, err error) {
	maximum := protocol.Some(int64(batch))
	acked = len(w.Reply.Jobs)
	if acked == 0 {
		_, err := w.Call(&protocol.Request{Op: protocol.OpClaim, Queue: queue, Max: maximum, WaitMS: wait.Milliseconds()})
		return 0, err
	}
	req := Acking(&w.Reply)
	if more(acked) {
		req.Claim = &protocol.NextClaim{Queue: queue, Max: maximum}
	}
	r, err := w.Call(req)
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

// Acking returns the ack of all jobs of a claim's reply.
func Acking(r *protocol.Reply) *protocol.Request {
	if len(r.Jobs) == 1 {
		return &protocol.Request{Op: protocol.OpAck, Lease: r.Jobs[0].Lease}
	}
	leases := make([]string, len(r.Jobs))
	for i := range r.Jobs {
		leases[i] = r.Jobs[i].Lease
	}
	return &protocol.Request{Op: protocol.OpAck, Leases: leases}
}
