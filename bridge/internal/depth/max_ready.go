package depth

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// askTimeout bounds one query, and so how long an enqueue waits for it.
const askTimeout = 5 * time.Second

// ReadyAge is how old the number of ready jobs can be, and for how long a failed query counts.
const ReadyAge = time.Second

// ReadyLimits holds the numbers of ready jobs of queues with a limit: as the database last reported, plus what was
// enqueued here since.
type ReadyLimits struct {
	count func(ctx context.Context, queue string) (ready int64, err error) // queries the database

	mu  sync.Mutex
	all map[string]*ReadyCount
}

// ReadyCount is the number of ready jobs of one queue.
type ReadyCount struct {
	count   func(ctx context.Context, queue string) (ready int64, err error)
	Name    string
	mu      sync.Mutex // not held during a query
	ready   int64
	err     error // error of the last query
	at      time.Time
	current *Query // query under way; nil: none
}

// Query is one query to the database, for all sessions that wait for its answer.
type Query struct {
	done    chan struct{}
	cancel  context.CancelFunc // called when no session waits any longer
	waiting int                // sessions that wait; ReadyCount.mu guards it
}

// NewReadyLimits returns empty limits. count queries the database.
func NewReadyLimits(count func(ctx context.Context, queue string) (int64, error)) *ReadyLimits {
	return &ReadyLimits{count: count}
}

// Queue finds or creates the count of a queue.
func (r *ReadyLimits) Queue(name string) *ReadyCount {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.all[name]
	if q == nil {
		if r.all == nil {
			r.all = make(map[string]*ReadyCount)
		}
		q = &ReadyCount{Name: name, count: r.count}
		r.all[name] = q
	}
	return q
}

// Forget removes queues.
func (r *ReadyLimits) Forget(names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		delete(r.all, name)
	}
}

// Refresh starts a query or joins the one under way. The caller awaits it. It returns nil if the known count is
// recent enough.
func (r *ReadyCount) Refresh() *Query {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == nil && time.Since(r.at) <= ReadyAge {
		return nil
	}
	if r.current == nil {
		ctx, cancel := context.WithTimeoutCause(context.Background(), askTimeout, fmt.Errorf("the depth of the queue %s: no answer within %v", r.Name, askTimeout))
		r.current = &Query{done: make(chan struct{}), cancel: cancel}
		go r.query(ctx, r.current)
	}
	r.current.waiting++
	return r.current
}

// Await waits for a query. It returns false if gone is closed and the query does not end within ReadyAge after that.
// It waits that long because requests that a client sent before it hung up are still carried out.
func (r *ReadyCount) Await(gone <-chan struct{}, l *Query) (ended bool) {
	if l == nil {
		return true
	}
	ended = true
	select {
	case <-l.done:
	case <-gone:
		timer := time.NewTimer(ReadyAge)
		defer timer.Stop()
		select {
		case <-l.done:
		case <-timer.C:
			ended = false
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.waiting--; l.waiting == 0 {
		l.cancel()
		if r.current == l {
			r.current = nil // the next Refresh starts another one
		}
	}
	return ended
}

// query runs l.
func (r *ReadyCount) query(ctx context.Context, l *Query) {
	ready, err := r.count(ctx, r.Name)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == l {
		r.current, r.ready, r.err, r.at = nil, ready, err, time.Now()
	}
	close(l.done)
}

// Reserve counts n more ready jobs. It returns a FullError if they exceed the limit most.
func (r *ReadyCount) Reserve(n, most int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	if n > most || r.ready+n > most {
		return &FullError{queue: r.Name, ready: r.ready, added: n, limit: most}
	}
	r.ready += n
	return nil
}

// FullError reports that a queue would have more ready jobs than its limit.
type FullError struct {
	queue               string
	ready, added, limit int64
}

func (f *FullError) Error() string {
	if !f.Temporary() {
		return fmt.Sprintf("%d jobs at once for the queue %s, whose limit is %d ready jobs (max_ready): nothing was stored; enqueue fewer at a time", f.added, f.queue, f.limit)
	}
	return fmt.Sprintf("the queue %s has %d ready jobs, and its limit is %d (max_ready): nothing was stored; try again when workers have caught up",
		f.queue, f.ready, f.limit)
}

// Temporary reports whether the jobs can fit later. If they alone exceed the limit, they never do.
func (f *FullError) Temporary() bool { return f.added <= f.limit }
