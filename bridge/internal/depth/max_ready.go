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
func (d *ReadyLimits) Queue(name string) *ReadyCount {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.all[name]
	if q == nil {
		if d.all == nil {
			d.all = make(map[string]*ReadyCount)
		}
		q = &ReadyCount{Name: name, count: d.count}
		d.all[name] = q
	}
	return q
}

// Forget removes queues.
func (d *ReadyLimits) Forget(names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		delete(d.all, name)
	}
}

// Refresh starts a query or joins the one under way. The caller awaits it. It returns nil if the known count is
// recent enough.
func (q *ReadyCount) Refresh() *Query {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.current == nil && time.Since(q.at) <= ReadyAge {
		return nil
	}
	if q.current == nil {
		ctx, cancel := context.WithTimeoutCause(context.Background(), askTimeout, fmt.Errorf("the depth of the queue %s: no answer within %v", q.Name, askTimeout))
		q.current = &Query{done: make(chan struct{}), cancel: cancel}
		go q.query(ctx, q.current)
	}
	q.current.waiting++
	return q.current
}

// Await waits for a query. It returns false if gone is closed and the query does not end within ReadyAge after that.
// It waits that long because requests that a client sent before it hung up are still carried out.
func (q *ReadyCount) Await(gone <-chan struct{}, l *Query) (ended bool) {
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
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.waiting--; l.waiting == 0 {
		l.cancel()
		if q.current == l {
			q.current = nil // the next Refresh starts another one
		}
	}
	return ended
}

// query runs l.
func (q *ReadyCount) query(ctx context.Context, l *Query) {
	ready, err := q.count(ctx, q.Name)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.current == l {
		q.current, q.ready, q.err, q.at = nil, ready, err, time.Now()
	}
	close(l.done)
}

// Reserve counts n more ready jobs. It returns a FullError if they exceed the limit most.
func (q *ReadyCount) Reserve(n, most int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return q.err
	}
	if n > most || q.ready+n > most {
		return &FullError{queue: q.Name, ready: q.ready, added: n, limit: most}
	}
	q.ready += n
	return nil
}

// FullError reports that a queue would have more ready jobs than its limit.
type FullError struct {
	queue               string
	ready, added, limit int64
}

func (e *FullError) Error() string {
	if !e.Temporary() {
		return fmt.Sprintf("%d jobs at once for the queue %s, whose limit is %d ready jobs (max_ready): nothing was stored; enqueue fewer at a time", e.added, e.queue, e.limit)
	}
	return fmt.Sprintf("the queue %s has %d ready jobs, and its limit is %d (max_ready): nothing was stored; try again when workers have caught up",
		e.queue, e.ready, e.limit)
}

// Temporary reports whether the jobs can fit later. If they alone exceed the limit, they never do.
func (e *FullError) Temporary() bool { return e.added <= e.limit }
