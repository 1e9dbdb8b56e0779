package pipeline

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
)

// lockedWrites are the writes whose rows, or keys, another program keeps locked. They are tried outside of the group
// commits; see commitLocked. committer.mu guards it.
type lockedWrites struct {
	queue   []*PendingWrite
	left    int            // those in queue and those being tried
	running sync.WaitGroup // of commitLocked
}

func isLocked(err error) bool {
	_, ok := errors.AsType[*backends.LockedError](err)
	return ok
}

// canWaitForKey reports whether it is possible that another program has stored a key of a write of the batch in an open
// transaction, and that the batch waits for its end.
func (b batch) canWaitForKey(p *PendingWrite) bool {
	return !b.alone && slices.ContainsFunc(newJobs(p.write), func(j backends.NewJob) bool { return j.Key != "" })
}

// commitWithoutKeys sets aside the writes that can wait for a key, and commits the others and the claims.
func (c *committer) commitWithoutKeys(hard context.Context, b batch) error {
	var others []*PendingWrite
	for _, p := range b.writes {
		if b.canWaitForKey(p) {
			c.setLockedAside(hard, p)
		} else {
			others = append(others, p)
		}
	}
	if b.writes = others; len(others)+len(b.claims) == 0 {
		return nil
	}
	return c.commit(hard, b)
}

// setLockedAside queues a write of a commit among the locked ones.
func (c *committer) setLockedAside(hard context.Context, p *PendingWrite) {
	c.requeue([]*PendingWrite{p}, func(again []*PendingWrite) {
		idle := c.locked.left == 0
		c.locked.queue = append(c.locked.queue, again...)
		c.locked.left += len(again)
		if idle && len(again) > 0 {
			c.locked.running.Go(func() { c.commitLocked(hard) })
		}
	})
}

// commitLocked tries the locked writes until there are none. By turns, one of them waits alone for its lock, and one
// commit that waits for no lock carries out those that are free by now. So a locked row delays the writes of others
// by one such wait at most.
func (c *committer) commitLocked(hard context.Context) {
	for alone := true; ; alone = !alone {
		writes, n := c.takeLocked(alone)
		if len(writes) > 0 && c.commit(hard, batch{writes: writes, alone: alone}) != nil && hard.Err() != nil {
			c.answerAll(hard.Err())
		}
		c.mu.Lock()
		c.locked.left -= n
		done := c.locked.left == 0
		c.mu.Unlock()
		c.writes.poke() // a write is possibly queued again, or was the last one
		if done {
			return
		}
	}
}

// takeLocked removes the first locked write from their queue, or else the first ones that fit into one commit. It
// returns them without those that no session waits for, and how many it removed. A commit has each lease once.
func (c *committer) takeLocked(alone bool) (writes []*PendingWrite, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	leases := map[backends.Token]bool{}
	var sum size
	for _, p := range c.locked.queue {
		if n > 0 && (alone || n == batchWrites || sum.jobs+p.size.jobs > batchJobs || sum.bytes+p.size.bytes > batchBytes) {
			break
		}
		own := backends.LeasesOf(p.write)
		if slices.ContainsFunc(own, func(l backends.Lease) bool { return leases[l.Token] }) {
			break
		}
		for _, l := range own {
			leases[l.Token] = true
		}
		n++
		if p.state.take() {
			sum.jobs += p.size.jobs
			sum.bytes += p.size.bytes
			writes = append(writes, p)
		}
	}
	c.locked.queue = c.locked.queue[n:]
	return writes, n
}
