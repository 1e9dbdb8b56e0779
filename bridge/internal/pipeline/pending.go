package pipeline

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/fairshare"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// PendingWrite is a write on its way to a commit.
type PendingWrite struct {
	write    backends.Write
	session  *quota.Session // session that waits for it; nil: none
	received time.Time      // when its request arrived; zero: not known
	pushed   time.Time      // of a Deliver
	number   uint64         // grows in the order of push
	price    int64
	room     *semaphore.Weighted // memory that the price is reserved from; nil: none
	size     size
	state    atomic.Int32
	onEnd    func()         // called at the end of the write; can be nil
	ended    func(Outcome)  // called after onEnd; can be nil
	onTry    func()         // called when its first commit has ended, even if it must be tried again; nil: never, or no more
	runs     []lease.Run    // of a settle, or of the release of a session: what the lease table has about each lease
	holder   *quota.Session // of a Release: the session that held the jobs; nil: none
	unseen   bool           // of a Release: no worker had the jobs
	alone    bool           // it was set aside and waits for a locked row; only its commit uses alone
	marked   bool           // its ready jobs were announced to the claims of its commit; only its commit uses marked
	Done     chan Outcome   // capacity 1: the commit loop never waits for a reader
}

// run returns the counters and the run time of the write's lease, as metrics.RunOf does.
func (p *PendingWrite) run(lease int) (queue *metrics.Queue, took time.Duration) {
	if lease >= len(p.runs) {
		return nil, -1
	}
	return p.runs[lease].Counters, p.runs[lease].Took
}

// size is what a write adds to a batch.
type size struct {
	jobs    int
	settled int // of jobs
	bytes   int64
}

func (s size) units() int { return fairshare.Units(s.jobs, s.bytes) }

// Outcome is the result of a PendingWrite.
type Outcome struct {
	Result backends.WriteResult
	Err    error
}

// reserve waits for memory for p, a session's write, whose request keeps beside more bytes. The caller pushes or
// drops the write.
func (c *committer) reserve(ctx context.Context, p *PendingWrite, beside int64) error {
	p.size, p.Done = sizeOf(p.write), c.outcomes.get()
	most, bytes := int64(queueBytes), p.size.bytes+beside
	p.room = c.enqueueMemory
	if len(backends.LeasesOf(p.write)) > 0 && bytes <= largeSettle {
		p.room, most = c.settleMemory, settleBytes
	}
	p.price = min(max(bytes+int64(p.size.jobs)*256, writePrice), most)
	if p.room.TryAcquire(p.price) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.times.Timeout())
	defer cancel()
	if err := p.room.Acquire(ctx, p.price); err != nil {
		return c.unavailable("more than %d MiB of writes wait for the database", most>>20)
	}
	return nil
}

// push queues a reserved write. It never blocks.
func (c *committer) push(p *PendingWrite) {
	c.mu.Lock()
	c.pushed++
	p.number = c.pushed
	c.queue = append(c.queue, p)
	if !c.fair.Over(p.session) {
		c.arrived++
	}
	c.missing -= p.size.units()
	enough := c.arrived >= c.wakeAt && c.missing <= 0
	c.mu.Unlock()
	if enough {
		c.writes.poke()
	}
}

// drop returns the memory of a write that has ended or was not pushed.
func (c *committer) drop(p *PendingWrite) {
	if p.room != nil {
		p.room.Release(p.price)
	}
}

// pushFree queues a write that must not wait for memory: a release of jobs that a session or a lost commit left
// behind. The number of leases bounds these writes. ended can be nil. It is called when the write is committed or
// dropped.
func (c *committer) pushFree(w backends.Write, ended func()) *PendingWrite {
	p := &PendingWrite{write: w, size: sizeOf(w), onEnd: ended, pushed: time.Now(), Done: make(chan Outcome, 1)}
	c.push(p)
	return p
}

// current returns the write as of now: the time limits of jobs go on while the record of their hand-outs waits for a commit.
func (p *PendingWrite) current() backends.Write {
	d, ok := p.write.(backends.Deliver)
	if !ok {
		return p.write
	}
	d.Deliveries = slices.Clone(d.Deliveries)
	for i := range d.Deliveries {
		d.Deliveries[i].Ago += time.Since(p.pushed)
	}
	return d
}

// endTry calls onTry after the first commit of the write.
func (p *PendingWrite) endTry() {
	if f := p.onTry; f != nil {
		p.onTry = nil
		f()
	}
}

// timer returns a pooled timer. Each write needs one.
func (c *committer) timer(d time.Duration) *time.Timer {
	t, ok := c.timers.Get().(*time.Timer)
	if !ok {
		return time.NewTimer(d)
	}
	t.Reset(d)
	return t
}

// wait returns the outcome of a pushed write. If no commit has taken the write after patience, wait takes it out
// of the queue: nothing was written.
func (c *committer) wait(p *PendingWrite, patience time.Duration) (backends.WriteResult, error) {
	timer := c.timer(patience)
	defer func() {
		timer.Stop() // since Go 1.23 the channel receives nothing after Stop
		c.timers.Put(timer)
	}()
	select {
	case o := <-p.Done:
		c.outcomes.put(p.Done)
		return o.Result, o.Err
	case <-timer.C:
	}
	for !p.state.CompareAndSwap(taken, overdue) { // the state can change between the two values
		if p.state.CompareAndSwap(queued, abandoned) {
			c.forget(p)
			c.drop(p)
			return backends.WriteResult{}, c.unavailable("the database did not take it within %v", patience)
		}
	}
	o := <-p.Done // in a commit, which has its own deadline
	c.outcomes.put(p.Done)
	if errors.Is(o.Err, errOverdue) {
		o.Err = c.unavailable("the database did not take it within %v", patience)
	}
	return o.Result, o.Err
}
