package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/qsidecar/qsidecar/backends"
)

// Bounds of the group commit. The queue of writes is bounded by bytes, with a
// price for each write's own size, so that back-pressure reaches the clients
// before memory runs out.
const (
	queueBytes   = 128 << 20 // must exceed the largest frame (64 MiB)
	writePrice   = 4 << 10   // at least, for each write
	batchWrites  = 1000      // writes in one commit
	batchJobs    = 4000      // jobs or leases in one commit
	batchBytes   = 16 << 20  // payload bytes in one commit, beyond its first write
	enqueueWait  = 5 * time.Second
	retryInitial = 20 * time.Millisecond
	retryMax     = time.Second
)

// committer is the group commit of one database: whatever queued up while the
// previous commit ran goes into the next one, writes and claims together. There
// is no timer: an idle committer commits at once, a busy one in larger groups.
type committer struct {
	backend    backends.Backend
	broker     *broker
	keeper     *keeper
	ledger     *ledger
	policy     func(queue string) (backends.Policy, bool)
	patience   time.Duration // how long one commit, and a settle, may take: the host lease
	maxPayload int64
	claimBytes int64
	log        *slog.Logger

	trouble atomic.Pointer[error] // why the last commit failed; nil: it did not
	room    *semaphore.Weighted
	wakeup  chan struct{} // 1: one wake-up is enough
	number  atomic.Uint64

	mu    sync.Mutex
	queue []*pending

	seen map[backends.Token]struct{} // leases of the batch being built; the loop's own
}

// pending is a write on its way to a commit.
type pending struct {
	write backends.Write
	price int64
	size  size
	state atomic.Int32
	done  chan outcome // 1: the loop never waits for a reader
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

// The states of a pending write.
const (
	queued int32 = iota
	taken        // in a commit, or answered
	abandoned
)

func (c *committer) wake() {
	select {
	case c.wakeup <- struct{}{}:
	default:
	}
}

// reserve waits for room in the queue. Each reserved pending must be pushed.
func (c *committer) reserve(ctx context.Context, w backends.Write) (*pending, error) {
	p := &pending{write: w, size: sizeOf(w), done: make(chan outcome, 1)}
	p.price = min(max(p.size.bytes+int64(p.size.jobs)*256, writePrice), queueBytes)
	if c.room.TryAcquire(p.price) {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	if err := c.room.Acquire(ctx, p.price); err != nil {
		return nil, c.unavailable("more than %d MiB of writes wait for the database", queueBytes>>20)
	}
	return p, nil
}

// push queues a reserved write. It never blocks.
func (c *committer) push(p *pending) {
	c.mu.Lock()
	c.queue = append(c.queue, p)
	c.mu.Unlock()
	c.wake()
}

// drop gives up a reserved write that was not pushed.
func (c *committer) drop(p *pending) { c.room.Release(p.price) }

// pushFree queues a write that must not wait for room: a release of what a
// session or a lost commit left behind. Their number is bounded by the leases.
func (c *committer) pushFree(w backends.Write) *pending {
	p := &pending{write: w, size: sizeOf(w), done: make(chan outcome, 1)}
	c.push(p)
	return p
}

// wait returns the outcome of a pushed write. A write still in the queue after
// patience is taken out again: nothing was written then.
func (c *committer) wait(p *pending, patience time.Duration) (backends.WriteResult, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case o := <-p.done:
		return o.res, o.err
	case <-timer.C:
	}
	if p.state.CompareAndSwap(queued, abandoned) {
		c.room.Release(p.price)
		return backends.WriteResult{}, c.unavailable("the database did not take it within %v", patience)
	}
	o := <-p.done // in a commit, which has a deadline of its own
	return o.res, o.err
}

// unavailable says what could not be done, and why the database's last commit failed.
func (c *committer) unavailable(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if why := c.trouble.Load(); why != nil {
		cause := *why
		var u *backends.UnavailableError
		if errors.As(cause, &u) {
			cause = u.Err // it is said once that it is unavailable
		}
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return backends.Unavailable(err)
}

func (c *committer) finish(p *pending, o outcome) {
	c.room.Release(p.price)
	p.done <- o
}

// run commits until ctx is done and the queue is empty, or hard is done.
func (c *committer) run(ctx, hard context.Context) error {
	delay := retryInitial
	for {
		writes := c.take()
		asks := c.gather(writes)
		if len(writes)+len(asks) == 0 {
			select {
			case <-c.wakeup:
				continue
			case <-ctx.Done():
			}
			c.mu.Lock()
			left := len(c.queue)
			c.mu.Unlock()
			if left == 0 {
				return nil
			}
			continue
		}
		err := c.commit(hard, writes, asks)
		if err == nil {
			delay = retryInitial
			c.trouble.Store(nil)
			continue
		}
		if c.trouble.Swap(&err) == nil {
			c.log.Warn("a commit failed and is tried again", "error", err)
		}
		select { // jitter, so that the hosts of one database do not come back in step
		case <-time.After(delay/2 + rand.N(delay)):
		case <-hard.Done():
			c.answerAll(err)
			return fmt.Errorf("writes were left when the time to stop was over: %w", err)
		}
		delay = min(2*delay, retryMax)
	}
}

// take chooses the writes of the next commit, in their order. No lease is twice in
// one batch: a second write about it waits for the next.
func (c *committer) take() []*pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.seen)
	var batch []*pending
	var sum size
	i := 0
	for ; i < len(c.queue) && len(batch) < batchWrites; i++ {
		p := c.queue[i]
		if len(batch) > 0 && (sum.jobs+p.size.jobs > batchJobs || sum.bytes+p.size.bytes > batchBytes) {
			break
		}
		if p.state.Load() == abandoned {
			continue
		}
		if !c.distinct(p.write) {
			break
		}
		if !p.state.CompareAndSwap(queued, taken) {
			continue
		}
		sum.jobs += p.size.jobs
		sum.bytes += p.size.bytes
		batch = append(batch, p)
	}
	rest := copy(c.queue, c.queue[i:])
	clear(c.queue[rest:])
	c.queue = c.queue[:rest]
	return batch
}

func (c *committer) distinct(w backends.Write) bool {
	leases := leasesOf(w)
	for _, l := range leases {
		if _, dup := c.seen[l.Token]; dup {
			return false
		}
	}
	for _, l := range leases {
		c.seen[l.Token] = struct{}{}
	}
	return true
}

// putBack queues writes again, before all others.
func (c *committer) putBack(writes []*pending) {
	for _, p := range writes {
		p.state.Store(queued)
	}
	c.mu.Lock()
	c.queue = append(append(make([]*pending, 0, len(writes)+len(c.queue)), writes...), c.queue...)
	c.mu.Unlock()
}

// gather chooses the claims of the next commit. Whoever waits for a queue that
// the same commit enqueues to is asked in it.
func (c *committer) gather(writes []*pending) []ask {
	for _, p := range writes {
		c.broker.mark(readyQueues(p.write))
	}
	id := c.keeper.fresh()
	if id == 0 {
		c.keeper.beatNow()
		c.broker.refuse(backends.Unavailable(errBeatLate))
		return nil
	}
	asks := c.broker.gather(id, func() uint64 { return c.number.Add(1) })
	for i := range asks {
		c.ledger.expect(asks[i].slots)
	}
	return asks
}

// answerAll ends every queued write with err.
func (c *committer) answerAll(err error) {
	c.mu.Lock()
	left := c.queue
	c.queue = nil
	c.mu.Unlock()
	for _, p := range left {
		if p.state.CompareAndSwap(queued, taken) {
			c.finish(p, outcome{err: err})
		}
	}
}
