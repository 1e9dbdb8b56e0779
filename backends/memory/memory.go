// Package memory is a Backend that keeps its jobs in the process: for tests of
// what stands on a Backend. No database URL selects it, and nothing in it
// survives the process.
package memory

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Backend is one database in memory. It is also a backends.Inspector.
type Backend struct {
	clock  func() time.Time
	fault  func(op string) error
	after  func(backends.Batch) error
	refuse func(backends.NewJob) error

	mu     sync.Mutex
	closed bool
	now    time.Time // of the transaction under way
	seq    int64     // ids and positions are on one line of numbers
	jobs   map[string]*job
	freed  []string     // queues in which the write under way made jobs ready
	keys   map[key]*job // also where the job is gone
	paused map[string]bool
	hosts  map[backends.Identity]*host
}

var _ interface {
	backends.Backend
	backends.Inspector
} = (*Backend)(nil)

type job struct {
	backends.NewJob
	backends.AttemptState
	id                       string
	seq, pos, fence          int64
	state                    backends.State
	enqueued, readyAt, runAt time.Time
	token                    backends.Token
	owner                    backends.Identity
	worker                   string
	lease, timeout           time.Duration // lease 0: a session lease
	claimed, leaseEnd        time.Time
	deadline                 time.Time // zero: none
	keep, keepDead           time.Duration
	finished, expires        time.Time
	result                   []byte
	failures                 []backends.Failure
}

type key struct{ queue, key string }

type host struct {
	beats      uint64
	expires    time.Time
	dead, left bool
	reads      bool
	lease      time.Duration
}

// Option changes what New makes.
type Option func(*Backend)

// WithClock replaces the database's clock, time.Now.
func WithClock(now func() time.Time) Option { return func(b *Backend) { b.clock = now } }

// WithFault has f asked before anything is done. Its error is returned, and
// nothing happened. The ops are "commit" (a batch with writes), "claim" (one with
// claims), "beat", "held" and "sweep".
func WithFault(f func(op string) error) Option { return func(b *Backend) { b.fault = f } }

// WithAfterCommit has f called once a commit took effect. Its error is returned
// although the data changed: a reply that got lost.
func WithAfterCommit(f func(backends.Batch) error) Option { return func(b *Backend) { b.after = f } }

// WithRefuse has f asked for each job that a commit would store, before it stores
// any, like a trigger: its error refuses the whole commit. It must not call the Backend.
func WithRefuse(f func(backends.NewJob) error) Option { return func(b *Backend) { b.refuse = f } }

// New makes an empty database.
func New(opts ...Option) *Backend {
	b := &Backend{
		clock:  time.Now,
		fault:  func(string) error { return nil },
		after:  func(backends.Batch) error { return nil },
		refuse: func(backends.NewJob) error { return nil },
		jobs:   map[string]*job{}, keys: map[key]*job{},
		paused: map[string]bool{}, hosts: map[backends.Identity]*host{},
	}
	for _, o := range opts {
		o(b)
	}
	return b
}

// Info implements backends.Backend.
func (b *Backend) Info() backends.Info {
	return backends.Info{Engine: "memory", Version: "1", Address: "memory", Database: "AAAAAAAAAAA", Prefetch: true}
}

// Close implements backends.Backend.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

// do runs f as one transaction; f errs only before it changes anything.
func (b *Backend) do(ctx context.Context, f func() error) error {
	if ctx.Err() != nil {
		return backends.Unavailable(context.Cause(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return backends.Unavailable(errors.New("the memory backend was closed"))
	}
	b.now, b.freed = b.clock(), nil
	return f()
}

// Commit implements backends.Backend.
func (b *Backend) Commit(ctx context.Context, batch backends.Batch) (res backends.Results, err error) {
	if len(batch.Writes) > 0 {
		err = b.fault("commit")
	}
	if err == nil && len(batch.Claims) > 0 {
		err = b.fault("claim")
	}
	if err == nil {
		err = b.do(ctx, func() error { return b.commit(batch, &res) })
	}
	if err == nil {
		err = b.after(batch)
	}
	if err != nil {
		return backends.Results{}, err
	}
	return res, nil
}

func (b *Backend) commit(batch backends.Batch, res *backends.Results) error {
	if h := b.hosts[batch.Host]; len(batch.Claims) > 0 && (h == nil || h.dead || h.left) {
		return backends.ErrEvicted
	}
	for _, w := range batch.Writes {
		if err := b.refused(w); err != nil {
			return backends.Refused(err)
		}
	}
	for _, w := range batch.Writes {
		b.freed = nil
		r := b.write(w)
		r.MadeReady = b.freed
		res.Writes = append(res.Writes, r)
	}
	for _, c := range batch.Claims {
		res.Claims = append(res.Claims, b.claim(batch.Host, c))
	}
	return nil
}

// refused is what the trigger says to the jobs of w, but not to those of an ack
// whose lease is lost.
func (b *Backend) refused(w backends.Write) error {
	var jobs []backends.NewJob
	switch w := w.(type) {
	case backends.Enqueue:
		jobs = w.Jobs
	case backends.Ack:
		if len(w.Enqueue) > 0 && b.valid(w.Leases[0]) != nil {
			jobs = w.Enqueue
		}
	}
	for _, n := range jobs {
		if err := b.refuse(n); err != nil {
			return err
		}
	}
	return nil
}

func (b *Backend) write(w backends.Write) (r backends.WriteResult) {
	switch w := w.(type) {
	case backends.Enqueue:
		r.Stored = b.store(w.Jobs)
	case backends.Ack:
		if r.Lost = b.each(w.Leases, 0, func(j *job) { b.ack(j, w.Result) }); len(r.Lost) == 0 {
			r.Stored = b.store(w.Enqueue)
		}
	case backends.Nack:
		r.Lost = b.each(w.Leases, 0, func(j *job) {
			b.meet(j, j.tried().AfterNack(w))
			r.Failed.Add(j.Queue, backends.CauseNacked, j.state == backends.StateDead)
		})
	case backends.Extend:
		r.Lost = b.each(w.Leases, 0, func(j *job) { b.extend(j, w) })
	case backends.Release:
		r.Lost = b.each(w.Leases, w.Owner, func(j *job) {
			b.meet(j, j.tried().AfterRelease(w))
			r.Failed.Add(j.Queue, w.Cause, j.state == backends.StateDead)
		})
	case backends.Deliver:
		for _, h := range w.Deliveries {
			r.Lost = append(r.Lost, b.each([]backends.Lease{h.Lease}, 0, func(j *job) { j.deliver(h.Worker) })...)
		}
	}
	return r
}
