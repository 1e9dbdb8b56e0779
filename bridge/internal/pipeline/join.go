package pipeline

import "context"

// While commits are small, the loop of the writes includes the claims. So both share one transaction and one wait for
// the log, and a new job is claimed in the commit that stores it. But if the writes have many jobs, these costs are a
// small part of the commit, and two concurrent commits use two cores. Then the claims have their own loop. The engine
// decides what is small (Info.JoinJobs).

// joinClaims chooses the claims of a commit of these writes, if it includes claims. The caller calls commitEnds after
// the commit.
func (c *committer) joinClaims(hard context.Context, writes []*PendingWrite) (groups []claimGroup, commitEnds func()) {
	jobs := 0
	for _, p := range writes {
		p.marked = false
		jobs += p.size.jobs
	}
	if c.joinJobs > 0 && jobs > 0 && c.joined.Swap(jobs <= c.joinJobs) && jobs > c.joinJobs {
		c.claims.poke()
	}
	if !c.joined.Load() || !c.claiming.TryLock() { // after a commit of claims, their loop wakes this one
		return nil, func() {}
	}
	for _, p := range writes { // the same commit can claim their jobs
		p.marked = true
		c.dispatcher.markReady(readyQueues(p.write), readyJobs(p.write))
	}
	return c.gatherClaims(hard), c.endClaims
}

// separateClaims chooses the claims of a commit without writes, unless the loop of the writes includes them. The
// caller calls commitEnds after the commit, if there are claims.
func (c *committer) separateClaims(hard context.Context) (groups []claimGroup, commitEnds func()) {
	if c.joined.Load() {
		c.writes.poke()
		return nil, nil
	}
	c.claiming.Lock()
	if groups = c.gatherClaims(hard); len(groups) == 0 {
		c.endClaims()
		if c.joined.Load() {
			c.writes.poke() // it possibly found the claims locked
		}
	}
	return groups, c.endClaims
}

// endClaims ends the reservation for the claims of a commit. Their jobs count for their sessions by then.
func (c *committer) endClaims() {
	n := c.reserved
	c.reserved = 0
	c.claiming.Unlock()
	if n > 0 {
		c.memory.ReleaseClaims(n)
	}
}
