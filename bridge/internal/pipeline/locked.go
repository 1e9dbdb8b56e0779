package pipeline

import (
	"context"
	"errors"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

// Writes whose rows, or keys, another program keeps locked. They are tried apart from the group commits, so that they hold up no
// others. Writes to a slow adopted table come here too: its backend answers their group commit as if a row were locked.

func isLocked(err error) bool {
	_, ok := errors.AsType[*backends.LockedError](err)
	return ok
}

// canWaitForKey reports whether it is possible that another program has stored a key of a write of the batch in an open
// transaction, and that the batch waits for its end. Another sidecar can have locked the row of a batch of jobs in the same way.
func (b batch) canWaitForKey(p *PendingWrite) bool {
	return !b.waits && slices.ContainsFunc(newJobs(p.write), func(j backends.NewJob) bool { return j.Key != "" || j.Batch != "" })
}

// commitWithoutKeys sets aside the writes that can wait for a key, and commits the others and the claims.
func (e *executor) commitWithoutKeys(hard context.Context, b batch) error {
	var others []*PendingWrite
	for _, p := range b.writes {
		if b.canWaitForKey(p) {
			e.setLockedAside(hard, p)
		} else {
			others = append(others, p)
		}
	}
	if b.writes = others; len(others)+len(b.claims) == 0 {
		return nil
	}
	return e.commit(hard, b)
}

// setLockedAside queues a write of a commit among the locked ones.
func (e *executor) setLockedAside(hard context.Context, p *PendingWrite) {
	p.endTry()
	e.mu.Lock()
	first, over := e.scheduler.setAside(p)
	if first {
		e.locking.Go(func() { e.commitLocked(hard) })
	}
	e.mu.Unlock()
	e.finishOverdue(over)
}

// commitLocked tries the locked writes until there are none. By turns, one of them waits alone for its lock, and one
// commit that waits for no lock carries out those that are free by now. So a locked row delays the writes of others
// by one such wait at most.
func (e *executor) commitLocked(hard context.Context) {
	pace := retrier{loop: &e.loops.locked, log: e.log, hard: hard, delay: retryInitial}
	for alone := true; ; alone = !alone {
		e.mu.Lock()
		writes, n := e.scheduler.takeLocked(alone)
		e.mu.Unlock()
		if len(writes) > 0 {
			err := e.commit(hard, batch{writes: writes, waits: alone})
			if err != nil && hard.Err() != nil {
				e.answerAll(hard.Err())
			}
			if alone { // a write of a table that is unavailable must not go to and fro between the group commits and here in a loop
				e.loops.writes.poke()
				_ = pace.after(err)
			}
		}
		e.mu.Lock()
		done := e.scheduler.endLocked(n)
		e.mu.Unlock()
		e.loops.writes.poke() // a write is possibly queued again, or was the last one
		if done {
			return
		}
	}
}
