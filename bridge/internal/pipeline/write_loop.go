package pipeline

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Some engines carry out two large commits at once faster than one after the other, because each has a process, or waits
// for the log, of its own (Info.WriteCommits). There another commit of writes begins beside the first one as soon as
// overlapUnits wait (a unit is a job, or 8 KiB of payload: fairshare.Units). For small commits this does not pay: their
// fixed costs are high, so the loop waits until the first one has ended, and takes more writes together.
const overlapUnits = 256

// writeCommit is a commit of the loop of the writes.
type writeCommit struct {
	writes   []*PendingWrite
	leases   map[backends.Token]struct{} // that the writes are about: another commit must not have them
	sessions map[*quota.Session]struct{} // that sent the writes: their next writes come after this commit
	units    int                         // of the writes
	began    time.Time
	err      error // after the end
}

func newWriteCommit() *writeCommit {
	return &writeCommit{leases: make(map[backends.Token]struct{}), sessions: make(map[*quota.Session]struct{})}
}

// writeLoop is the state of runWrites.
type writeLoop struct {
	c     *committer
	hard  context.Context
	ended chan *writeCommit
	pace  retrier
	wait  lingerPlan
	spare *writeCommit // for the next commit; nil: none
	alone bool         // a session used up its share, so no two commits of writes run at once
}

// runWrites commits writes, and also claims if joined is set. It ends when ctx is done and the queue is empty, or
// when hard is done.
func (c *committer) runWrites(ctx, hard context.Context) error {
	l := writeLoop{
		c:     c,
		hard:  hard,
		ended: make(chan *writeCommit, c.writeCommits),
		pace:  retrier{loop: &c.writes, log: c.log, hard: hard, delay: retryInitial},
	}
	defer c.locked.running.Wait()
	for {
		if l.begin() {
			continue
		}
		select {
		case w := <-l.ended:
			if err := l.end(ctx, w); err != nil {
				return err
			}
			continue
		case <-c.writes.wake:
			continue
		case <-ctx.Done():
		}
		c.mu.Lock()
		left, aside, underWay := len(c.queue), c.locked.left, len(c.underWay)
		c.mu.Unlock()
		switch {
		case underWay > 0:
			if err := l.end(ctx, <-l.ended); err != nil {
				return err
			}
		case left > 0:
		case aside == 0:
			return nil
		default:
			<-c.writes.wake // the database can come back
		}
	}
}

// begin starts a commit in a goroutine of its own, if one pays now. It reports whether it did.
func (l *writeLoop) begin() bool {
	c := l.c
	most := c.writeCommits
	if l.alone {
		most = 1
	}
	beside := len(c.underWay) > 0 // only this goroutine changes it
	if !c.pays(most) || beside && !c.leavesConnection() {
		return false
	}
	w := l.spare
	if l.spare = nil; w == nil {
		w = newWriteCommit()
	}
	if c.takeBatch(w); len(w.writes) == 0 && beside {
		l.spare = w
		return false
	}
	groups, commitEnds := c.joinClaims(l.hard, w.writes)
	if len(w.writes)+len(groups) == 0 {
		commitEnds()
		c.forgetCommit(w)
		l.spare = w
		return false
	}
	w.began = time.Now()
	go func() {
		w.err = c.commit(l.hard, w.writes, groups)
		commitEnds()
		l.ended <- w
	}()
	return true
}

// end continues after a commit. It lingers if no other one is under way.
func (l *writeLoop) end(ctx context.Context, w *writeCommit) error {
	c := l.c
	last := c.forgetCommit(w)
	if err := l.pace.after(w.err); err != nil {
		for !last {
			last = c.forgetCommit(<-l.ended)
		}
		c.answerAll(err)
		return err
	}
	others, over := c.countWaiting(w.writes)
	l.alone = over
	took, large := time.Since(w.began), c.writeCommits > 1 && w.units >= overlapUnits
	w.writes, w.err, l.spare = nil, nil, w
	if !last || large || ctx.Err() != nil {
		return nil
	}
	switch most := l.wait.plan(others, took); {
	case most > 0:
		l.wait.learn(c.linger(others, most))
	case over: // so that sessions over their share leave the machine to the others
		c.linger(max(others, lingerFrom), min(took, lingerMost))
	}
	return nil
}

// pays reports whether another commit of writes pays now, if at most most of them run at once. If not, it arranges that
// the loop is woken when enough writes wait.
func (c *committer) pays(most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.missing = 0
	switch {
	case len(c.underWay) == 0:
		return true
	case len(c.underWay) >= most:
		c.missing = math.MaxInt // the end of a commit wakes the loop
		return false
	}
	missing := overlapUnits
	for _, p := range c.queue {
		if missing -= p.size.units(); missing <= 0 {
			return true
		}
	}
	c.missing = missing
	return false
}

// leavesConnection reports whether the pool has a free connection for a commit beside another one, and one more. The
// last one is for claims, however many requests operators send. If not, the end of a commit wakes the loop.
func (c *committer) leavesConnection() bool {
	u, ok := c.backend.Usage()
	if !ok || u.Max == 0 || u.Max-u.InUse >= 2 {
		return true
	}
	c.mu.Lock()
	c.missing = math.MaxInt
	c.mu.Unlock()
	return false
}

// forgetCommit removes a commit that has ended. It reports whether no other one is under way.
func (c *committer) forgetCommit(w *writeCommit) (last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underWay = slices.DeleteFunc(c.underWay, func(other *writeCommit) bool { return other == w })
	if last = len(c.underWay) == 0; last {
		c.missing = 0
	}
	return last
}
