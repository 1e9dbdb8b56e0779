package pipeline

import "time"

// A lane of writes that always commits at once splits its workers into two
// halves: one is in the commit, the other comes back during it, and each commit
// carries half of what it could. So after a commit of several writes the lane
// waits a moment for those whom it just answered: their next writes join those
// that came since then. Twice as many jobs share an fsync then, and on a full
// machine the wait costs nothing, because it is the workers' own work that is
// waited for (bench/README.md has the figures). Where the workers do not come
// back so soon, because their jobs take time, the lane stops waiting for them.
const (
	lingerFrom = 4                    // writes of the last commit; fewer are no group of workers
	lingerMost = 2 * time.Millisecond // and never longer than twice the last commit
	lingerSkip = 256                  // commits without a wait, at most, after waits in vain
)

// lingerPlan decides whether to wait, and for how many.
type lingerPlan struct {
	vain int // waits in vain in a row
	skip int // commits to come without one
}

// plan says for how long to wait at most after a commit of so many writes.
func (l *lingerPlan) plan(writes int, took time.Duration) time.Duration {
	if writes < lingerFrom {
		return 0
	}
	if l.skip > 0 {
		l.skip--
		return 0
	}
	return min(2*took, lingerMost)
}

// learn notes how many of the writes that were waited for came.
func (l *lingerPlan) learn(came, wanted int) {
	if 2*came >= wanted {
		l.vain = 0
		return
	}
	l.vain++
	l.skip = min(1<<min(l.vain, 16), lingerSkip)
}

// linger waits until so many more writes are queued, at most for that long, and
// returns how many came. Those of sessions that had their turn are no reason to go on.
// Wishes to commit are looked at when it is over: the lane takes what there is then.
func (c *committer) linger(wanted int, most time.Duration) (came int) {
	c.mu.Lock()
	before := c.arrived
	c.wakeAt = before + min(wanted, batchWrites-len(c.queue))
	ready := before >= c.wakeAt
	c.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	for !ready {
		select {
		case <-c.writes.wake:
			c.mu.Lock()
			ready = c.arrived >= c.wakeAt
			c.mu.Unlock()
		case <-timer.C:
			ready = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeAt = 0
	return c.arrived - before
}
