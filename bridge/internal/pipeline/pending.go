package pipeline

import (
	"context"
	"errors"
	"slices"
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
	state    state          // committer.mu guards it
	onEnd    func(Outcome)  // called at the end of the write; can be nil
	onTry    func()         // called when its first commit has ended, even if it must be tried again; nil: never, or no more
	runs     []lease.Run    // of a settle, or of the release of a session: what the lease table has about each lease
	holder   *quota.Session // of a Release: the session that held the jobs; nil: no worker had them
	Done     chan Outcome   // capacity 1: the commit loop never waits for a reader
}

// state is where a write is on its way to its outcome. Its methods are all transitions:
//
//	           take                     finish
//	queued ───────────► committing ───────────────► outcome
//	  │  ▲ ▲             │  │    │ expire
//	  │  │ └── putBack ──┘  │    ▼
//	  │  └──── set aside ───┘  overdue ── finish ──► outcome
//	  │ expire
//	  ▼
//	abandoned: the end of the wait is the outcome
//
// A write that was set aside is queued, too, but with the locked ones (see locked_writes.go).
type state uint8

const (
	queued     state = iota // no commit has it
	committing              // a commit has it, or it has its outcome
	abandoned               // no session waits: no commit takes it any more
	overdue                 // a commit has it, and it must not be tried again
)

// take gives a queued write to a commit. It returns false if no session waits for the write.
func (s *state) take() bool {
	if *s != queued {
		return false
	}
	*s = committing
	return true
}

// putBack queues a write again whose commit failed. It returns false if the time of the write is over.
func (s *state) putBack() bool {
	if *s != committing {
		return false
	}
	*s = queued
	return true
}

// expire ends the time of a write. It returns true if no commit has the write. Otherwise the commit answers it.
func (s *state) expire() bool {
	if *s == queued {
		*s = abandoned
		return true
	}
	*s = overdue
	return false
}

// unseen reports whether the write is a release of jobs that no worker had.
func (p *PendingWrite) unseen() bool {
	_, release := p.write.(backends.Release)
	return release && p.holder == nil
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
	p.size = sizeOf(p.write)
	if p.Done, _ = c.outcomes.Get().(chan Outcome); p.Done == nil {
		p.Done = make(chan Outcome, 1)
	}
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

// pushFree queues a write that no session waits for, and that must not wait for memory: a release of jobs that a
// session or a lost commit left behind, or the record of hand-outs. The number of leases bounds these writes.
func (c *committer) pushFree(p *PendingWrite) *PendingWrite {
	p.size, p.pushed, p.Done = sizeOf(p.write), time.Now(), make(chan Outcome, 1)
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
		c.outcomes.Put(p.Done)
		return o.Result, o.Err
	case <-timer.C:
	}
	if c.expire(p) {
		c.drop(p)
		return backends.WriteResult{}, c.unavailable("the database did not take it within %v", patience)
	}
	o := <-p.Done // in a commit, which has its own deadline
	c.outcomes.Put(p.Done)
	if errors.Is(o.Err, errOverdue) {
		o.Err = c.unavailable("the database did not take it within %v", patience)
	}
	return o.Result, o.Err
}
