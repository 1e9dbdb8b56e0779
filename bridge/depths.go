package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// roomForJobs holds new jobs against the limits: of names that are made up, and of their
// queues' ready jobs.
func (s *session) roomForJobs(p *plan, bank *bank, jobs []protocol.NewJob) error {
	for i := range jobs {
		if err := s.roomForName(p, jobs[i].Queue); err != nil {
			return err
		}
	}
	if !p.limited {
		return nil
	}
	count := make(map[*depth]int64, 1)
	for i := range jobs {
		if q, _ := p.queue(jobs[i].Queue); q.MaxReady > 0 {
			count[bank.depths.of(jobs[i].Queue)]++
		}
	}
	if len(count) > 0 && s.hasty {
		return backends.Unavailable(context.Cause(s.gone))
	}
	looks := make(map[*depth]*look, 1)
	for q := range count { // all at a time
		looks[q] = q.refresh(bank)
	}
	var err error
	for q, n := range count {
		if err = errors.Join(err, q.await(s, looks[q])); err == nil {
			most, _ := p.queue(q.name)
			err = q.room(n, int64(most.MaxReady))
		}
	}
	return err
}

// depthAge is how old a queue's depth may be for max_ready, and for how long a failed look counts.
const depthAge = time.Second

// depths are how many ready jobs there are in queues that have a limit of them: as the
// database last said, and what was enqueued here since.
type depths struct {
	mu  sync.Mutex
	all map[string]*depth
}

type depth struct {
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
		q = &depth{name: name}
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
func (q *depth) refresh(bank *bank) *look {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.look == nil && time.Since(q.at) <= depthAge {
		return nil
	}
	if q.look == nil {
		ctx, cancel := context.WithTimeoutCause(context.Background(), enqueueWait, fmt.Errorf("the depth of the queue %s: no answer within %v", q.name, enqueueWait))
		q.look = &look{done: make(chan struct{}), cancel: cancel}
		go q.ask(ctx, bank, q.look)
	}
	q.look.wait++
	return q.look
}

// await waits for a look. A session whose client is gone waits for a moment longer, as what it
// sent is still carried out, but only once.
func (q *depth) await(s *session, l *look) (err error) {
	if l == nil {
		return nil
	}
	select {
	case <-l.done:
	case <-s.gone.Done():
		timer := time.NewTimer(depthAge)
		defer timer.Stop()
		select {
		case <-l.done:
		case <-timer.C:
			s.hasty = true
			err = backends.Unavailable(context.Cause(s.gone))
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
	return err
}

var errNoLook = errors.New("the database cannot be looked into")

// ask is a look.
func (q *depth) ask(ctx context.Context, bank *bank, l *look) {
	ready, err := bank.readyJobs(ctx, q.name)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.look == l {
		q.look, q.ready, q.err, q.at = nil, ready, err, time.Now()
	}
	close(l.done)
}

// readyJobs asks the database for the number of a queue's ready jobs.
func (b *bank) readyJobs(ctx context.Context, name string) (n int64, err error) {
	look, release, err := b.link.depth(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	stats, err := look.Stats(ctx, name)
	if err != nil && ctx.Err() != nil {
		return 0, backends.Unavailable(context.Cause(ctx)) // nothing was written
	}
	for _, s := range stats {
		n += s.Ready
	}
	return n, err
}

// room takes a place for n more ready jobs; an error says that there is none.
func (q *depth) room(n, most int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return q.err
	}
	if n > most { // no worker's pace mends that
		return protocol.Errorf(protocol.CodeBusy, "%d jobs at once for the queue %s, whose limit is %d ready jobs (max_ready): nothing was stored; enqueue fewer at a time", n, q.name, most)
	}
	if q.ready+n > most {
		e := protocol.Errorf(protocol.CodeBusy, "the queue %s has %d ready jobs, and its limit is %d (max_ready): nothing was stored; try again when workers have caught up",
			q.name, q.ready, most)
		e.RetryMS = protocol.Some(depthAge.Milliseconds())
		return e
	}
	q.ready += n
	return nil
}
