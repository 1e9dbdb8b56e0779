package bridge

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// depthAge is how old a queue's depth may be for max_ready, and for how long a failed look counts.
const depthAge = time.Second

// depths are how many ready jobs there are in queues that have a limit of them: as the
// database last said, and what was enqueued here since.
type depths struct {
	count func(ctx context.Context, queue string) (ready int64, err error) // asks the database

	mu  sync.Mutex
	all map[string]*depth
}

type depth struct {
	count func(ctx context.Context, queue string) (ready int64, err error)
	name  string
	mu    sync.Mutex // not held while the database is asked
	ready int64
	err   error // the last look failed
	at    time.Time
	look  *look // under way; nil: none
}

// look is one question to the database, for all who wait for its answer.
type look struct {
	done   chan struct{}
	cancel context.CancelFunc // called when no session waits any more
	wait   int                // sessions that do; depth.mu guards it
}

// of finds or makes the depth of a queue.
func (d *depths) of(name string) *depth {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.all[name]
	if q == nil {
		if d.all == nil {
			d.all = make(map[string]*depth)
		}
		q = &depth{name: name, count: d.count}
		d.all[name] = q
	}
	return q
}

// forget forgets queues.
func (d *depths) forget(names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		delete(d.all, name)
	}
}

// refresh begins a look, or joins the one under way. Each look that it returns must be awaited.
// nil: what is known is young enough.
func (q *depth) refresh() *look {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.look == nil && time.Since(q.at) <= depthAge {
		return nil
	}
	if q.look == nil {
		ctx, cancel := context.WithTimeoutCause(context.Background(), enqueueWait, fmt.Errorf("the depth of the queue %s: no answer within %v", q.name, enqueueWait))
		q.look = &look{done: make(chan struct{}), cancel: cancel}
		go q.ask(ctx, q.look)
	}
	q.look.wait++
	return q.look
}

// await waits for a look. It reports false where gone is closed and the look does not end within a moment
// either: a session whose client is gone waits so much longer, as what it sent is still carried out.
func (q *depth) await(gone <-chan struct{}, l *look) (ended bool) {
	if l == nil {
		return true
	}
	ended = true
	select {
	case <-l.done:
	case <-gone:
		timer := time.NewTimer(depthAge)
		defer timer.Stop()
		select {
		case <-l.done:
		case <-timer.C:
			ended = false
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.wait--; l.wait == 0 {
		l.cancel()
		if q.look == l {
			q.look = nil // the next one begins another
		}
	}
	return ended
}

// ask is a look.
func (q *depth) ask(ctx context.Context, l *look) {
	ready, err := q.count(ctx, q.name)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.look == l {
		q.look, q.ready, q.err, q.at = nil, ready, err, time.Now()
	}
	close(l.done)
}

// room takes a place for n more ready jobs; an error says that there is none.
func (q *depth) room(n, most int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return q.err
	}
	if n > most || q.ready+n > most {
		return &queueFullError{queue: q.name, ready: q.ready, added: n, limit: most}
	}
	q.ready += n
	return nil
}

// queueFullError says that a queue would have more ready jobs than its limit.
type queueFullError struct {
	queue               string
	ready, added, limit int64
}

func (e *queueFullError) Error() string {
	if !e.mayPass() {
		return fmt.Sprintf("%d jobs at once for the queue %s, whose limit is %d ready jobs (max_ready): nothing was stored; enqueue fewer at a time", e.added, e.queue, e.limit)
	}
	return fmt.Sprintf("the queue %s has %d ready jobs, and its limit is %d (max_ready): nothing was stored; try again when workers have caught up",
		e.queue, e.ready, e.limit)
}

// mayPass: the jobs may fit later. Where they are more than the limit, no worker's pace mends that.
func (e *queueFullError) mayPass() bool { return e.added <= e.limit }
