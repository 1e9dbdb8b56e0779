package pipeline

// In some databases each commit waits for the log, also one that only claims. There the loop of the writes includes
// the claims, so that both share one transaction and one wait. But if the writes have many jobs, the wait is a small
// part of the commit, and two concurrent commits use two cores. Then the claims have their own loop.

// joinJobs is the number of jobs of a commit's writes up to which it includes claims.
const joinJobs = 256

// joinClaims chooses the claims of a commit of these writes, if it includes claims. The caller calls commitEnds after
// the commit.
func (c *committer) joinClaims(writes []*PendingWrite) (groups []claimGroup, commitEnds func()) {
	jobs := 0
	for _, p := range writes {
		p.marked = false
		jobs += p.size.jobs
	}
	if c.joins && jobs > 0 && c.joined.Swap(jobs <= joinJobs) && jobs > joinJobs {
		c.claims.poke()
	}
	if !c.joined.Load() || !c.claiming.TryLock() { // after a commit of claims, their loop wakes this one
		return nil, func() {}
	}
	for _, p := range writes { // the same commit can claim their jobs
		p.marked = true
		c.dispatcher.markReady(readyQueues(p.write), readyJobs(p.write))
	}
	return c.gatherClaims(), c.endClaims
}

// separateClaims chooses the claims of a commit without writes, unless the loop of the writes includes them. The
// caller calls commitEnds after the commit, if there are claims.
func (c *committer) separateClaims() (groups []claimGroup, commitEnds func()) {
	if c.joined.Load() {
		c.writes.poke()
		return nil, nil
	}
	c.claiming.Lock()
	if groups = c.gatherClaims(); len(groups) == 0 {
		c.endClaims()
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
