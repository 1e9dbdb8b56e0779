// Package memory is a backend that keeps jobs in the memory of the process. It is for tests of the
// packages above the backends. No database URL selects it, and nothing in it survives the process.
//
// memory.go has the commit and the hooks for tests, jobs.go the writes and claims, maintenance.go
// the heartbeats and maintenance, inspect.go the operator's view, history.go the totals
// by hour.
package memory

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Backend is one database in memory. It is also a backends.Inspector.
type Backend struct {
	clock  func() time.Time
	fault  func() error
	after  func(backends.CommitContent) error
	refuse func(backends.NewJob) error

	mu        sync.Mutex
	closed    bool
	now       time.Time // time of the current transaction
	seq       int64     // numbers both ids and positions
	jobs      map[string]*job
	madeReady []string                 // queues in which the current write made jobs ready
	pending   []backends.StoredPending // of the current call or write
	keys      map[key]*job             // includes keys of deleted jobs
	paused    map[string]bool
	limits    map[string]backends.Limits
	nextAt    map[string]time.Duration // see backends.Gate
	sidecars  map[backends.Identity]*sidecar
	cancelled map[backends.Identity][]backends.Token // see backends.MaintenanceResult
	hours     []backends.HourTotals                  // by hour and queue
	schedules map[string]*backends.Schedule
	touched   map[group]bool // see Backend.admit
	batches   map[string]*batch
	endings   []string // the batches of which members ended since the last ResolveBatches
}

var _ interface {
	backends.Backend
	backends.Inspector
	backends.Historian
	backends.Scheduler
	backends.ProgressKeeper
	backends.Batcher
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
	deadline                 time.Time // zero: no deadline, or the time limit has not begun
	admitted                 bool      // it has a slot of its group
	undelivered              bool      // prefetched, and the time limit has not begun
	retainDone, retainDead   time.Duration
	finished, expires        time.Time
	result                   []byte
	failures                 []backends.Failure
	progress                 *backends.Progress // nil: none
	startBefore              time.Time          // zero: no limit
	started                  bool               // it was claimed at least once
	pending                  *pendingJob        // nil: none
}

type key struct{ queue, key string }

type sidecar struct {
	heartbeats uint64
	expires    time.Time
	dead, left bool
	last       backends.Heartbeat
}

// Option changes a Backend that New creates.
type Option func(*Backend)

// WithClock replaces the database's clock, time.Now.
func WithClock(now func() time.Time) Option { return func(b *Backend) { b.clock = now } }

// WithFault calls f before each Commit, Heartbeat, ClaimedBy and Maintain. If f returns an error, the
// operation returns it and changes nothing.
func WithFault(f func() error) Option { return func(b *Backend) { b.fault = f } }

// WithAfterCommit calls f after a commit took effect. Commit returns f's error although the data
// changed, as if the reply was lost.
func WithAfterCommit(f func(backends.CommitContent) error) Option {
	return func(b *Backend) { b.after = f }
}

// WithRefuse calls f for each job that a commit would store, before it stores any, like a trigger.
// An error of f refuses the whole commit. f must not call the Backend.
func WithRefuse(f func(backends.NewJob) error) Option { return func(b *Backend) { b.refuse = f } }

// New creates an empty database.
func New(opts ...Option) *Backend {
	b := &Backend{
		clock:  time.Now,
		fault:  func() error { return nil },
		after:  func(backends.CommitContent) error { return nil },
		refuse: func(backends.NewJob) error { return nil },
		jobs:   map[string]*job{}, keys: map[key]*job{},
		paused: map[string]bool{}, limits: map[string]backends.Limits{}, nextAt: map[string]time.Duration{}, cancelled: map[backends.Identity][]backends.Token{}, sidecars: map[backends.Identity]*sidecar{}, schedules: map[string]*backends.Schedule{}, touched: map[group]bool{}, batches: map[string]*batch{},
	}
	for _, o := range opts {
		o(b)
	}
	return b
}

// Info implements backends.Backend.
func (b *Backend) Info() backends.Info {
	return backends.Info{Engine: "memory", Version: "1", Address: "memory", Database: "AAAAAAAAAAA", Prefetch: true, Progress: true}
}

// Close implements backends.Backend.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

// do runs f as one transaction. f returns an error only before it changes anything.
func (b *Backend) do(ctx context.Context, f func() error) error {
	if ctx.Err() != nil {
		return backends.Unavailable(context.Cause(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return backends.Unavailable(errors.New("the memory backend was closed"))
	}
	b.now, b.madeReady, b.pending = b.clock(), nil, nil
	return f()
}

// Commit implements backends.Backend.
func (b *Backend) Commit(ctx context.Context, batch backends.CommitContent) (res backends.Results, err error) {
	if err = b.fault(); err == nil {
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

// Admit implements backends.Admitter. It admits jobs of all groups that were touched.
func (b *Backend) Admit(ctx context.Context, _ []backends.Group) (ready []string) {
	if err := b.do(ctx, func() error { ready = b.admit(); return nil }); err != nil {
		return nil
	}
	return ready
}

func (b *Backend) commit(batch backends.CommitContent, res *backends.Results) error {
	if h := b.sidecars[batch.Sidecar]; len(batch.Claims) > 0 && (h == nil || h.dead || h.left) {
		return backends.ErrEvicted
	}
	for _, w := range batch.Writes {
		if err := b.refusal(w); err != nil {
			return backends.Refused(err)
		}
	}
	for _, w := range batch.Writes {
		b.madeReady, b.pending = nil, nil
		r := b.write(w, batch.Jitter)
		r.MadeReady, r.Pending = b.madeReady, b.pending
		res.Writes = append(res.Writes, r)
	}
	for _, c := range batch.Claims {
		res.Claims = append(res.Claims, b.claim(batch.Sidecar, c))
	}
	for g := range b.touched {
		res.Groups = append(res.Groups, backends.Group{Queue: g.queue, Name: g.name})
	}
	res.Batches = slices.Clone(b.endings)
	return nil
}

// refusal returns the first error of the refuse hook for the jobs that w would store. An ack whose
// lease is lost stores none.
func (b *Backend) refusal(w backends.Write) error {
	var jobs []backends.NewJob
	switch w := w.(type) {
	case backends.Enqueue:
		jobs = w.Jobs
	case backends.Ack:
		if len(w.Enqueue) > 0 && b.claimedJob(w.Leases[0]) != nil {
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

func (b *Backend) write(w backends.Write, jitter backends.Jitter) (r backends.WriteResult) {
	switch w := w.(type) {
	case backends.Enqueue:
		if r.Err = b.batchRefusal(w.Jobs); r.Err == nil {
			r.Stored = b.store(w.Jobs)
		}
	case backends.Ack:
		if r.Err = b.batchRefusal(w.Enqueue); r.Err != nil {
			return r
		}
		if r.Lost = b.forEachLease(w.Leases, 0, func(j *job) { b.ack(j, w.Result) }); len(r.Lost) == 0 {
			r.Stored = b.store(w.Enqueue)
		}
	case backends.Nack:
		r.Lost = b.forEachLease(w.Leases, 0, func(j *job) {
			b.apply(j, j.counted().AfterNack(w, jitter.Of(j.Queue)))
			r.Failed.Add(j.Queue, backends.CauseNacked, j.state == backends.StateDead)
		})
	case backends.Extend:
		r.Lost = b.forEachLease(w.Leases, 0, func(j *job) {
			if b.extend(j, w); w.Bind != 0 && j.Alone() {
				r.Alone = append(r.Alone, backends.Lease{Job: j.id, Token: j.token})
			}
		})
	case backends.Release:
		r.Lost = b.forEachLease(w.Leases, w.Owner, func(j *job) {
			b.apply(j, j.counted().AfterRelease(w, jitter.Of(j.Queue)))
			r.Failed.Add(j.Queue, w.Cause, j.state == backends.StateDead)
		})
	case backends.Deliver:
		for _, h := range w.Deliveries {
			r.Lost = append(r.Lost, b.forEachLease([]backends.Lease{h.Lease}, 0, func(j *job) { b.deliver(j, h.Worker, h.Ago) })...)
		}
	}
	return r
}
