// Package jobends passes on how jobs ended, to the requests that wait for it.
//
// A job that ends through this sidecar is passed on by its commit, so that its result arrives even if the job is deleted.
// Ends through other sidecars are found by queries: each second for the jobs of a waited queue that finished last, and
// each five seconds for waited jobs that are gone. A request also queries its jobs by their ids when its wait begins and ends.
// So a job that the other queries don't find delays a request, but is never missed.
package jobends

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	// MaxWaited is how many jobs all waits of a database can name.
	MaxWaited = 100_000
	// maxKept bounds the bytes of the results that waits keep for their replies.
	maxKept = 64 << 20

	pollEvery = time.Second
	goneEvery = 5 // polls between two queries for jobs that are gone

	// goneAfter is how long queries don't find a job until it is gone. A job's ack through this sidecar can be committed, and not
	// passed on yet.
	goneAfter = time.Second

	// A poll reads pages of the jobs that finished last, until a page has a job that an earlier poll saw. The first page is
	// longer than a commit: a job of a slow commit can be behind jobs that finished later.
	firstPage = 200
	nextPage  = 1000
	maxPages  = 20

	// ViewBytes is how many bytes of payloads and results one query returns.
	ViewBytes = 8 << 20
)

// ErrTooMany means that waits name MaxWaited jobs already.
var ErrTooMany = fmt.Errorf("waits of this sidecar name more than %d jobs already: wait for fewer, or later", MaxWaited)

// End is how a job ended.
type End struct {
	ID        string
	State     backends.State // StateDone, StateDead, or StateDeleted: its queue has no such job
	Result    []byte
	LeftOut   int64  // bytes of a result that is left out
	LastError string // the message of the last failed attempt
}

// Hub has the waits of a database.
type Hub struct {
	peek func(context.Context, backends.Peek) ([]backends.View, error)
	wake chan struct{} // has one if Run has to begin to poll

	waits atomic.Bool // queues isn't empty

	mu     sync.Mutex
	queues map[string]*queue // those with waits
	waited int               // jobs that all waits name
	kept   int64             // bytes of results that waits keep
}

// queue has the waits of a queue.
type queue struct {
	waits map[string]map[*Wait]struct{} // by the job's id
	seen  map[backends.State]map[string]struct{}
	gone  map[string]time.Time // jobs that a query did not find, and when the first one did not
}

// New returns a Hub without waits. peek queries the database.
func New(peek func(context.Context, backends.Peek) ([]backends.View, error)) *Hub {
	return &Hub{peek: peek, wake: make(chan struct{}, 1), queues: map[string]*queue{}}
}

// Wait waits for jobs of one queue. It must be closed.
type Wait struct {
	C     chan struct{} // has one after more jobs have ended
	hub   *Hub
	queue string
	left  map[string]struct{}
	ended []End
	kept  int64
}

// Wait begins to wait for jobs. It returns ErrTooMany if too many jobs are waited for.
func (h *Hub) Wait(name string, ids []string) (*Wait, error) {
	w := &Wait{C: make(chan struct{}, 1), hub: h, queue: name, left: make(map[string]struct{}, len(ids))}
	for _, id := range ids {
		w.left[id] = struct{}{}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waited+len(w.left) > MaxWaited {
		return nil, ErrTooMany
	}
	h.waited += len(w.left)
	q := h.queues[name]
	if q == nil {
		q = &queue{waits: map[string]map[*Wait]struct{}{}, seen: map[backends.State]map[string]struct{}{}, gone: map[string]time.Time{}}
		h.queues[name] = q
		h.waits.Store(true)
	}
	for id := range w.left {
		if q.waits[id] == nil {
			q.waits[id] = map[*Wait]struct{}{}
		}
		q.waits[id][w] = struct{}{}
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
	return w, nil
}

// Ended returns the jobs that have ended, in the order in which this was noticed, and how many have not.
func (w *Wait) Ended() (all []End, left int) {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	return slices.Clone(w.ended), len(w.left)
}

// Look queries those jobs of the wait whose ends it has not got yet. With last, a job that does not exist counts as deleted.
// Otherwise this takes a second query, after goneAfter.
func (w *Wait) Look(ctx context.Context, last bool) error {
	w.hub.mu.Lock()
	left := slices.Sorted(maps.Keys(w.left))
	fresh := w.hub.queues[w.queue] != nil && len(w.hub.queues[w.queue].seen) == 0
	w.hub.mu.Unlock()
	if fresh { // before the query by ids, so that polls find all later ends
		if err := w.hub.poll(ctx, w.queue); err != nil {
			return err
		}
	}
	gone, err := w.hub.look(ctx, w.queue, left)
	if err != nil {
		return err
	}
	w.hub.notFound(w.queue, gone, last)
	return nil
}

// Close ends the wait.
func (w *Wait) Close() {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept -= w.kept
	w.kept = 0
	for id := range w.left {
		h.forget(w, id)
	}
}

// forget removes a job from a wait. h.mu is held.
func (h *Hub) forget(w *Wait, id string) {
	delete(w.left, id)
	h.waited--
	q := h.queues[w.queue]
	if delete(q.waits[id], w); len(q.waits[id]) > 0 {
		return
	}
	delete(q.waits, id)
	if delete(q.gone, id); len(q.waits) == 0 {
		delete(h.queues, w.queue)
		h.waits.Store(len(h.queues) > 0)
	}
}

// Pass passes on that a job ended.
func (h *Hub) Pass(name string, e End) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.queues[name]
	if q == nil {
		return
	}
	for w := range q.waits[e.ID] {
		one := e
		if n := int64(len(e.Result)); h.kept+n > maxKept {
			one.Result, one.LeftOut = nil, n
		} else {
			w.kept, h.kept = w.kept+n, h.kept+n
		}
		w.ended = append(w.ended, one)
		h.forget(w, e.ID)
		select {
		case w.C <- struct{}{}:
		default:
		}
	}
}

// Waits reports whether a request waits for a job of any queue.
func (h *Hub) Waits() bool { return h.waits.Load() }

// Run finds the ends of jobs through other sidecars, until ctx is done. failed gets the first error of polls that fail in a row.
func (h *Hub) Run(ctx context.Context, failed func(error)) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	failing := false
	for n := 1; ; n++ {
		if !h.Waits() {
			select {
			case <-h.wake:
			case <-ctx.Done():
				return
			}
			tick.Reset(pollEvery)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		h.mu.Lock()
		names := slices.Sorted(maps.Keys(h.queues))
		h.mu.Unlock()
		var errs []error
		for _, name := range names {
			errs = append(errs, h.poll(ctx, name))
			if n%goneEvery == 0 {
				errs = append(errs, h.findGone(ctx, name))
			}
		}
		err := errors.Join(errs...)
		if err != nil && !failing && ctx.Err() == nil {
			failed(err)
		}
		failing = err != nil
	}
}

// poll passes on the ends of waited jobs that are among those of a queue that finished last.
func (h *Hub) poll(ctx context.Context, name string) error {
	for _, state := range []backends.State{backends.StateDone, backends.StateDead} {
		ids, err := h.newest(ctx, name, state)
		if err == nil && len(ids) > 0 {
			_, err = h.look(ctx, name, ids)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// newest returns the waited jobs among those that finished last in a state.
func (h *Hub) newest(ctx context.Context, name string, state backends.State) (found []string, err error) {
	p := backends.Peek{Queue: name, State: state, Newest: true, OnlyIDs: true, Max: firstPage}
	seen := map[string]struct{}{}
	for range maxPages {
		views, err := h.peek(ctx, p)
		if errors.Is(err, backends.ErrNoSuchJob) { // the last job of the page before was pruned or retried
			break
		}
		if err != nil {
			return found, err
		}
		h.mu.Lock()
		q := h.queues[name]
		if q == nil {
			h.mu.Unlock()
			return nil, nil
		}
		before := q.seen[state]
		known := len(views) < p.Max || before == nil // the first poll only notes them
		for i := range views {
			id := views[i].ID
			seen[id] = struct{}{}
			if _, ok := before[id]; ok {
				known = true
			}
			if _, waited := q.waits[id]; waited {
				found = append(found, id)
			}
		}
		if known {
			q.seen[state] = seen
			h.mu.Unlock()
			return found, nil
		}
		h.mu.Unlock()
		p.After, p.Max = views[len(views)-1].ID, nextPage
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if q := h.queues[name]; q != nil {
		q.seen[state] = seen
	}
	return found, nil
}

// look queries jobs by their ids, passes on the ends of those that have ended, and returns the ids of those that do not
// exist.
func (h *Hub) look(ctx context.Context, name string, ids []string) (gone []string, err error) {
	for len(ids) > 0 {
		views, err := h.peek(ctx, backends.Peek{Queue: name, IDs: ids, Max: len(ids), MaxBytes: ViewBytes})
		if err != nil {
			return nil, err
		}
		if len(views) == 0 {
			return ids, nil
		}
		found := make(map[string]struct{}, len(views))
		for i := range views {
			v := &views[i]
			found[v.ID] = struct{}{}
			if v.State != backends.StateDone && v.State != backends.StateDead {
				continue
			}
			e := End{ID: v.ID, State: v.State, Result: v.Result}
			if n := len(v.Failures); n > 0 {
				e.LastError = v.Failures[n-1].Message
			}
			h.Pass(name, e)
		}
		h.exist(name, found)
		ids = slices.DeleteFunc(ids, func(id string) bool { _, ok := found[id]; return ok })
	}
	return nil, nil
}

// findGone passes on that waited jobs are gone.
func (h *Hub) findGone(ctx context.Context, name string) error {
	h.mu.Lock()
	var ids []string
	if q := h.queues[name]; q != nil {
		ids = slices.Sorted(maps.Keys(q.waits))
	}
	h.mu.Unlock()
	for some := range slices.Chunk(ids, nextPage) {
		views, err := h.peek(ctx, backends.Peek{Queue: name, IDs: slices.Clone(some), Max: len(some), OnlyIDs: true})
		if err != nil {
			return err
		}
		found := make(map[string]struct{}, len(views))
		for i := range views {
			found[views[i].ID] = struct{}{}
		}
		h.exist(name, found)
		h.notFound(name, slices.DeleteFunc(slices.Clone(some), func(id string) bool { _, ok := found[id]; return ok }), false)
	}
	return nil
}

// exist forgets that earlier queries did not find jobs: one that began before their enqueue was committed doesn't.
func (h *Hub) exist(name string, found map[string]struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if q := h.queues[name]; q != nil {
		maps.DeleteFunc(q.gone, func(id string, _ time.Time) bool { _, ok := found[id]; return ok })
	}
}

// notFound handles that a query did not find jobs. They are gone if that is the last query, or if the one before did not
// find them either, and the first of these was goneAfter ago.
func (h *Hub) notFound(name string, ids []string, last bool) {
	for _, id := range ids {
		if last || h.staysGone(name, id) {
			h.Pass(name, End{ID: id, State: backends.StateDeleted})
		}
	}
}

// staysGone notes that a query did not find a job, and reports whether one before it did not either.
func (h *Hub) staysGone(name, id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.queues[name]
	if q == nil {
		return false
	}
	first, again := q.gone[id]
	if !again {
		q.gone[id] = time.Now()
	}
	return again && time.Since(first) >= goneAfter
}
