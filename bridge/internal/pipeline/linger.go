package pipeline

import "time"

// A loop that always commits immediately splits its workers into two halves: one half is in the commit, the other
// comes back during it. Each commit then carries half of what it could. So after a commit of several writes the loop
// lingers: it waits a moment for the next writes of the workers that it has answered. Twice as many jobs share an
// fsync then. On a fully loaded machine the wait costs nothing, because the workers use that time (bench/README.md
// has the figures). If the workers do not come back soon, because their jobs take time, the loop stops lingering. It doesn't
// wait for sessions that queued writes during the commit: their workers don't wait for the replies.
const (
	lingerFrom = 4                    // minimum number of writes in the last commit that counts as a group of workers
	lingerMost = 2 * time.Millisecond // and never longer than twice the last commit
	lingerSkip = 256                  // commits without a wait, at most, after waits in vain
)

// lingerPlan decides whether to linger after a commit.
type lingerPlan struct {
	vain int // number of consecutive waits in vain
	skip int // number of coming commits without a wait
}

// plan returns the maximum time to linger after a commit of that many writes and that duration.
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

// learn records how many of the expected writes came. Clients that send at their own pace also send during a wait. Since a
// wait is at most twice as long as the commit, that is up to two thirds of the expected writes. Only more than that shows
// that the answered clients came back.
func (l *lingerPlan) learn(came, wanted int) {
	if 5*came >= 4*wanted {
		l.vain = 0
		return
	}
	l.vain++
	l.skip = min(1<<min(l.vain, 16), lingerSkip)
}

// linger waits until `wanted` more writes are queued, or the next commit is full, for at most most. It returns how many came
// and for how many it waited. Writes of sessions that used up their share do not count.
func (c *committer) linger(wanted int, most time.Duration) (came, expected int) {
	c.mu.Lock()
	before := c.arrived
	expected = max(min(wanted, batchWrites-len(c.queue)), 0)
	c.wakeAt = before + expected
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
	return c.arrived - before, expected
}
