// Package memory is a Backend that keeps its jobs in the process: for tests of
// what stands on a Backend. No database URL selects it, and nothing in it
// survives the process.
package memory

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
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
	seq    int64 // ids and positions are on one line of numbers
	jobs   map[string]*job
	ready  map[string][]*job // by queue, in the order of claims
	keys   map[key]*keyed
	paused map[string]bool
	hosts  map[backends.Identity]*host
}

var _ interface {
	backends.Backend
	backends.Inspector
} = (*Backend)(nil)

type job struct {
	backends.NewJob
	id                              string
	seq, pos                        int64
	state                           backends.State
	enqueued, readyAt, runAt        time.Time
	token                           backends.Token
	owner                           backends.Identity
	lease, timeout                  time.Duration // lease 0: a session lease
	leaseEnd, deadline              time.Time     // zero: none
	worker                          string
	claimed, finished, expires      time.Time
	attempts, limit, losses         int
	fence                           int64
	backoff, backoffMax, keep, bury time.Duration
	result                          []byte
	failures                        []backends.Failure
}

type key struct{ queue, key string }

type keyed struct {
	job     string
	expires time.Time
	state   backends.State // once the job's row is gone
}

type host struct {
	beats      uint64
	expires    time.Time
	dead, left bool
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

// WithRefuse has f asked for each job about to be stored, like a trigger: its
// error rolls the whole commit back as a *RefusedError. It must not call the Backend.
func WithRefuse(f func(backends.NewJob) error) Option { return func(b *Backend) { b.refuse = f } }

// New makes an empty database.
func New(opts ...Option) *Backend {
	b := &Backend{
		clock:  time.Now,
		fault:  func(string) error { return nil },
		after:  func(backends.Batch) error { return nil },
		refuse: func(backends.NewJob) error { return nil },
		jobs:   map[string]*job{}, ready: map[string][]*job{}, keys: map[key]*keyed{},
		paused: map[string]bool{}, hosts: map[backends.Identity]*host{},
	}
	for _, o := range opts {
		o(b)
	}
	return b
}

// Info implements backends.Backend.
func (b *Backend) Info() backends.Info {
	return backends.Info{Engine: "memory", Version: "1", Place: "memory", Database: "AAAAAAAAAAA"}
}

// Close implements backends.Backend.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

// do runs f as one transaction: an error of f undoes what f did.
func (b *Backend) do(ctx context.Context, f func(t *tx) error) error {
	if ctx.Err() != nil {
		return backends.Unavailable(context.Cause(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return backends.Unavailable(errClosed)
	}
	t := &tx{Backend: b, now: b.clock()}
	err := f(t)
	if err != nil {
		for _, undo := range slices.Backward(t.undo) {
			undo()
		}
	}
	return err
}

// Commit implements backends.Backend.
func (b *Backend) Commit(ctx context.Context, batch backends.Batch) (res backends.Results, err error) {
	for op, n := range map[string]int{"commit": len(batch.Writes), "claim": len(batch.Claims)} {
		if n > 0 {
			if err := b.fault(op); err != nil {
				return res, err
			}
		}
	}
	err = b.do(ctx, func(t *tx) error {
		if len(batch.Claims) > 0 && !b.hosts[batch.Host].alive() {
			return backends.ErrHostLost
		}
		for _, w := range batch.Writes {
			t.freed = nil
			r, err := t.write(w)
			if err != nil {
				return err
			}
			r.Freed = t.freed
			res.Writes = append(res.Writes, r)
		}
		for _, c := range batch.Claims {
			res.Claims = append(res.Claims, t.claim(batch.Host, c))
		}
		return nil
	})
	if err == nil {
		err = b.after(batch)
	}
	if err != nil {
		return backends.Results{}, err
	}
	return res, nil
}

func (h *host) alive() bool { return h != nil && !h.dead && !h.left }

// tx is a transaction: it holds the lock, and knows how to undo itself.
type tx struct {
	*Backend
	now   time.Time
	undo  []func()
	freed []string
}

func (t *tx) write(w backends.Write) (r backends.WriteResult, err error) {
	switch w := w.(type) {
	case backends.Enqueue:
		r.Stored, err = t.store(w.Jobs)
	case backends.Ack:
		r.Lost = t.each(w.Leases, 0, func(j *job) { t.ack(j, w.Result) })
		if len(r.Lost) == 0 {
			r.Stored, err = t.store(w.Enqueue)
		}
	case backends.Nack:
		r.Lost = t.each(w.Leases, 0, func(j *job) { t.nack(j, w) })
	case backends.Extend:
		r.Lost = t.each(w.Leases, 0, func(j *job) { t.extend(j, w) })
	case backends.Release:
		r.Lost = t.each(w.Leases, w.Owner, func(j *job) { t.release(j, w) })
	}
	return r, err
}

// each calls f with the job of each valid lease and returns the other leases. With
// an owner, a claim that belongs to another host is none.
func (t *tx) each(leases []backends.Lease, owner backends.Identity, f func(*job)) (lost []backends.Lease) {
	for _, l := range leases {
		if j := t.jobs[l.Job]; j != nil && j.state == backends.StateClaimed && j.token == l.Token && (owner == 0 || owner == j.owner) {
			t.change(j, func() { f(j) })
		} else {
			lost = append(lost, l)
		}
	}
	return lost
}

// change runs f, which may change j and may set its state to StateDeleted.
func (t *tx) change(j *job, f func()) {
	old, was := *j, t.keys[key{j.Queue, j.Key}]
	t.unlist(j)
	f()
	t.list(j)
	if j.state == backends.StateReady && !slices.Contains(t.freed, j.Queue) {
		t.freed = append(t.freed, j.Queue)
	}
	if was != nil {
		copied := *was
		t.undo = append(t.undo, func() { *was = copied; t.keys[key{old.Queue, old.Key}] = was })
	}
	t.undo = append(t.undo, func() { t.unlist(j); *j = old; t.list(j) })
}

func (b *Backend) list(j *job) {
	if j.state != backends.StateDeleted {
		b.jobs[j.id] = j
	}
	if j.state == backends.StateReady {
		at, _ := slices.BinarySearchFunc(b.ready[j.Queue], j, inOrder)
		b.ready[j.Queue] = slices.Insert(b.ready[j.Queue], at, j)
	}
}

func (b *Backend) unlist(j *job) {
	delete(b.jobs, j.id)
	if at, ok := slices.BinarySearchFunc(b.ready[j.Queue], j, inOrder); ok {
		b.ready[j.Queue] = slices.Delete(b.ready[j.Queue], at, at+1)
	}
}

func inOrder(x, y *job) int {
	return cmp.Or(cmp.Compare(y.Priority, x.Priority), cmp.Compare(x.pos, y.pos))
}

func (t *tx) store(jobs []backends.NewJob) (stored []backends.Stored, err error) {
	for _, n := range jobs {
		k := key{n.Queue, n.Key}
		if old := t.keys[k]; n.Key != "" && old != nil && (t.unfinished(old) || t.now.Before(old.expires)) {
			stored = append(stored, backends.Stored{ID: old.job, Duplicate: true, State: t.stateOf(old)})
			continue
		}
		if err := t.refuse(n); err != nil {
			return nil, backends.Refused(err)
		}
		t.seq++
		n.Payload, n.Headers = bytes.Clone(n.Payload), maps.Clone(n.Headers)
		j := &job{NewJob: n, id: strconv.FormatInt(t.seq, 10), seq: t.seq, pos: t.seq, enqueued: t.now, state: backends.StateDeleted}
		if n.Key != "" {
			before := t.keys[k]
			t.keys[k] = &keyed{job: j.id, expires: t.now.Add(n.KeyTTL)}
			t.undo = append(t.undo, func() {
				if t.keys[k] = before; before == nil {
					delete(t.keys, k)
				}
			})
		}
		at := n.RunAt
		if n.Delay > 0 {
			at = t.now.Add(n.Delay)
		}
		t.change(j, func() {
			if j.state, j.readyAt = backends.StateReady, t.now; at.After(t.now) {
				j.state, j.runAt = backends.StateScheduled, at
			}
		})
		stored = append(stored, backends.Stored{ID: j.id})
	}
	return stored, nil
}

func (b *Backend) stateOf(k *keyed) backends.State {
	if j := b.jobs[k.job]; j != nil {
		return j.state
	}
	return k.state
}

func (b *Backend) unfinished(k *keyed) bool {
	j := b.jobs[k.job]
	return j != nil && j.finished.IsZero()
}

// remove deletes the row; the key remembers how the job ended.
func (t *tx) remove(j *job, as backends.State) {
	if k := t.keys[key{j.Queue, j.Key}]; k != nil && k.job == j.id {
		k.state = as
	}
	j.state = backends.StateDeleted
}

func (t *tx) ack(j *job, result []byte) {
	if j.keep == 0 {
		t.remove(j, backends.StateDone)
		return
	}
	j.state, j.finished, j.expires, j.result = backends.StateDone, t.now, t.now.Add(j.keep), bytes.Clone(result)
}

func (t *tx) die(j *job) {
	j.state, j.finished, j.expires = backends.StateDead, t.now, time.Time{}
	if j.bury > 0 {
		j.expires = t.now.Add(j.bury)
	}
}

// again makes j ready in a new position, or scheduled when there is a delay.
func (t *tx) again(j *job, delay time.Duration) {
	if delay > 0 {
		j.state, j.runAt = backends.StateScheduled, t.now.Add(delay)
		return
	}
	t.seq++
	j.state, j.pos, j.readyAt = backends.StateReady, t.seq, t.now
}

func (t *tx) fail(j *job, c backends.Cause, message string) {
	j.failures = append(j.failures, backends.Failure{Attempt: j.attempts, Cause: c, Message: message, At: t.now})
}

func (t *tx) nack(j *job, n backends.Nack) {
	if n.Uncharged {
		j.attempts--
	} else {
		j.losses = 0
		t.fail(j, backends.CauseNacked, n.Error)
	}
	delay := n.Delay
	if !n.HasDelay {
		delay = backends.Backoff(j.backoff, j.backoffMax, j.attempts)
	}
	if n.Dead || !n.Uncharged && j.attempts >= j.limit {
		t.die(j)
	} else {
		t.again(j, delay)
	}
}

func (t *tx) extend(j *job, e backends.Extend) {
	switch {
	case e.Bind != 0:
		j.owner, j.worker, j.lease, j.leaseEnd = e.Bind, e.Worker, 0, time.Time{}
	case e.Lease > 0:
		j.lease, j.leaseEnd = e.Lease, t.now.Add(e.Lease)
	case j.lease > 0:
		j.leaseEnd = t.now.Add(j.lease)
	}
}

func (t *tx) release(j *job, r backends.Release) {
	if r.Uncharged {
		j.attempts--
		j.state = backends.StateReady
		return
	}
	t.fail(j, r.Cause, r.Message)
	j.losses++
	switch {
	case j.attempts >= j.limit:
		t.die(j)
	case j.losses == 1 && r.Cause != backends.CauseTimedOut:
		t.again(j, 0)
	default:
		t.again(j, backends.Backoff(j.backoff, j.backoffMax, j.attempts))
	}
}
