package bridge

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/qsidecar/qsidecar/backends"
)

// pending is a write on its way to a commit.
type pending struct {
	write  backends.Write
	sess   *account // whose it is; nil: nobody waits for it
	price  int64
	room   *semaphore.Weighted // that the price is of; nil: none
	size   size
	state  atomic.Int32
	ended  func()       // nil: nothing to do but to answer
	runs   []ran        // of an Ack or a Nack: how long each of its leases was worked on
	unseen bool         // of a Release: no worker had the jobs
	alone  bool         // it was set aside, and waits for a locked row; its commit's own
	done   chan outcome // 1: the loop never waits for a reader
}

// run is what is known of the delivery of the write's lease.
func (p *pending) run(lease int) (queue *queueMetrics, took time.Duration) {
	if lease >= len(p.runs) {
		return nil, -1
	}
	return p.runs[lease].queue, p.runs[lease].took
}

// size is what a write adds to a batch.
type size struct {
	jobs  int
	bytes int64
}

type outcome struct {
	res backends.WriteResult
	err error
}

// reserve waits for room in the queue for a session's write, whose request keeps so many bytes
// beside it. Each reserved pending must be pushed.
func (c *committer) reserve(ctx context.Context, sess *account, w backends.Write, beside int64) (*pending, error) {
	p := &pending{write: w, sess: sess, size: sizeOf(w), done: make(chan outcome, 1)}
	most, bytes := int64(queueBytes), p.size.bytes+beside
	p.room = c.room
	if len(leasesOf(w)) > 0 && bytes <= largeSettle {
		p.room, most = c.settles, settleBytes
	}
	p.price = min(max(bytes+int64(p.size.jobs)*256, writePrice), most)
	if p.room.TryAcquire(p.price) {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.times.patience())
	defer cancel()
	if err := p.room.Acquire(ctx, p.price); err != nil {
		return nil, c.unavailable("more than %d MiB of writes wait for the database", most>>20)
	}
	return p, nil
}

// push queues a reserved write. It never blocks.
func (c *committer) push(p *pending) {
	c.mu.Lock()
	c.queue = append(c.queue, p)
	if !c.turns.over(p.sess) {
		c.comers++
	}
	enough := c.comers >= c.enough
	c.mu.Unlock()
	if enough {
		c.writes.poke()
	}
}

// drop gives back the room of a write that has ended, or was not pushed.
func (c *committer) drop(p *pending) {
	if p.room != nil {
		p.room.Release(p.price)
	}
}

// pushFree queues a write that must not wait for room: a release of what a
// session or a lost commit left behind. Their number is bounded by the leases.
// ended, if not nil, is called when it is committed or given up.
func (c *committer) pushFree(w backends.Write, ended func()) *pending {
	p := &pending{write: w, size: sizeOf(w), ended: ended, done: make(chan outcome, 1)}
	c.push(p)
	return p
}

// pushUnseen is pushFree for the release of what no worker had.
func (c *committer) pushUnseen(w backends.Release, ended func()) {
	c.push(&pending{write: w, size: sizeOf(w), ended: ended, unseen: true, done: make(chan outcome, 1)})
}

// timer takes one from those that are kept: each settle needs one.
func (c *committer) timer(d time.Duration) *time.Timer {
	t, ok := c.timers.Get().(*time.Timer)
	if !ok {
		return time.NewTimer(d)
	}
	t.Reset(d)
	return t
}

// wait returns the outcome of a pushed write. A write still in the queue after
// patience is taken out again: nothing was written then.
func (c *committer) wait(p *pending, patience time.Duration) (backends.WriteResult, error) {
	timer := c.timer(patience)
	defer func() {
		timer.Stop() // from Go 1.23 on it brings nothing after that
		c.timers.Put(timer)
	}()
	select {
	case o := <-p.done:
		return o.res, o.err
	case <-timer.C:
	}
	for !p.state.CompareAndSwap(taken, overdue) { // it may go from one to the other meanwhile
		if p.state.CompareAndSwap(queued, abandoned) {
			c.forget(p)
			c.drop(p)
			return backends.WriteResult{}, c.unavailable("the database did not take it within %v", patience)
		}
	}
	o := <-p.done // in a commit, which has a deadline of its own
	if errors.Is(o.err, errOverdue) {
		o.err = c.unavailable("the database did not take it within %v", patience)
	}
	return o.res, o.err
}
