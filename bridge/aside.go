package bridge

import (
	"context"
	"errors"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
)

// asides are the writes whose rows another program keeps locked. They wait for the locks
// one by one, beside the group commits, which must not wait with them. committer.mu guards it.
type asides struct {
	queue   []*pending
	left    int            // those in queue and the one being tried
	running sync.WaitGroup // of tryAsides
}

func isLocked(err error) bool {
	_, ok := errors.AsType[*backends.LockedError](err)
	return ok
}

// setAside queues a write of a commit to be tried alone.
func (c *committer) setAside(hard context.Context, p *pending) {
	again := c.untaken([]*pending{p})
	c.mu.Lock()
	defer c.mu.Unlock()
	idle := c.asides.left == 0
	c.asides.queue = append(c.asides.queue, again...)
	c.asides.left += len(again)
	if idle && len(again) > 0 {
		c.asides.running.Go(func() { c.tryAsides(hard) })
	}
}

// tryAsides tries the writes that were set aside until there are none.
func (c *committer) tryAsides(hard context.Context) {
	for {
		c.mu.Lock()
		p := c.asides.queue[0]
		c.asides.queue = c.asides.queue[1:]
		c.mu.Unlock()
		if p.state.CompareAndSwap(queued, taken) {
			p.alone = true
			if c.commit(hard, []*pending{p}, nil) != nil && hard.Err() != nil {
				c.answerAll(hard.Err())
			}
		}
		c.mu.Lock()
		c.asides.left--
		done := c.asides.left == 0
		c.mu.Unlock()
		c.writes.poke() // it may be queued again, or the last
		if done {
			return
		}
	}
}
