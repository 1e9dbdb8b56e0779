package pipeline

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
)

// lockedWrites are the writes whose rows, or keys, another program keeps locked. They wait for the locks one by one,
// outside of the group commits. committer.mu guards it.
type lockedWrites struct {
	queue   []*PendingWrite
	left    int            // those in queue and the one being tried
	running sync.WaitGroup // of commitLocked
}

func isLocked(err error) bool {
	_, ok := errors.AsType[*backends.LockedError](err)
	return ok
}

// canWaitForKey reports whether it is possible that another program has stored a key of the write in an open
// transaction.
func canWaitForKey(p *PendingWrite) bool {
	var jobs []backends.NewJob
	switch w := p.write.(type) {
	case backends.Enqueue:
		jobs = w.Jobs
	case backends.Ack:
		jobs = w.Enqueue
	}
	return !p.alone && slices.ContainsFunc(jobs, func(j backends.NewJob) bool { return j.Key != "" })
}

// commitWithoutKeys sets aside the writes that can wait for a key, and commits the others.
func (c *committer) commitWithoutKeys(hard context.Context, writes []*PendingWrite) error {
	var others []*PendingWrite
	for _, p := range writes {
		if canWaitForKey(p) {
			c.setLockedAside(hard, p)
		} else {
			others = append(others, p)
		}
	}
	if len(others) == 0 {
		return nil
	}
	return c.commit(hard, others, nil)
}

// setLockedAside queues a write of a commit so that it is tried alone.
func (c *committer) setLockedAside(hard context.Context, p *PendingWrite) {
	again := c.requeueable([]*PendingWrite{p})
	c.mu.Lock()
	defer c.mu.Unlock()
	idle := c.locked.left == 0
	c.locked.queue = append(c.locked.queue, again...)
	c.locked.left += len(again)
	if idle && len(again) > 0 {
		c.locked.running.Go(func() { c.commitLocked(hard) })
	}
}

// commitLocked tries the locked writes until there are none.
func (c *committer) commitLocked(hard context.Context) {
	for {
		c.mu.Lock()
		p := c.locked.queue[0]
		c.locked.queue = c.locked.queue[1:]
		c.mu.Unlock()
		if p.state.CompareAndSwap(queued, taken) {
			p.alone = true
			if c.commit(hard, []*PendingWrite{p}, nil) != nil && hard.Err() != nil {
				c.answerAll(hard.Err())
			}
		}
		c.mu.Lock()
		c.locked.left--
		done := c.locked.left == 0
		c.mu.Unlock()
		c.writes.poke() // the write is possibly queued again, or was the last one
		if done {
			return
		}
	}
}
