package pipeline

import (
	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/dispatch"
)

// While commits are small, the loop of the writes includes the claims. So both share one transaction and one wait for
// the log, and a new job is claimed in the commit that stores it. But if the writes have many jobs, these costs are a
// small part of the commit, and two concurrent commits use two cores. Then the claims have their own loop. The engine
// decides what is small (Info.JoinJobs).

// joinClaims chooses the claims of a commit of these writes, if it includes claims. The caller calls commitEnds after
// the commit.
func (c *committer) joinClaims(writes []*PendingWrite) (b batch, commitEnds func()) {
	b.writes = writes
	jobs := 0
	for _, p := range writes {
		jobs += p.size.jobs
	}
	if c.joinJobs > 0 && jobs > 0 && c.joined.Swap(jobs <= c.joinJobs) && jobs > c.joinJobs {
		c.claims.poke()
	}
	if !c.joined.Load() || !c.claiming.TryLock() { // after a commit of claims, their loop wakes this one
		return b, func() {}
	}
	for _, p := range writes { // the same commit can claim their jobs
		c.dispatcher.Announce(readyQueues(p.write), readyJobs(p.write))
	}
	b.claims, b.announced = c.gatherClaims(), true
	return b, c.endClaims
}

// separateClaims chooses the claims of a commit without writes, unless the loop of the writes includes them. The
// caller calls commitEnds after the commit, if there are claims.
func (c *committer) separateClaims() (groups []dispatch.Group, commitEnds func()) {
	if c.joined.Load() {
		c.writes.poke()
		return nil, nil
	}
	c.claiming.Lock()
	if groups = c.gatherClaims(); len(groups) == 0 {
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

// gatherClaims chooses the claims of the next commit.
func (c *committer) gatherClaims() []dispatch.Group {
	id := c.heartbeat.Fresh()
	if id == 0 {
		c.heartbeat.SendNow()
		c.dispatcher.FailOnce(backends.Unavailable(errHeartbeatLate))
		return nil
	}
	budget := dispatch.Budget{Whole: max(c.claimBytes(), c.maxPayload())}
	c.reserved = c.memory.ReserveClaims(budget.Whole)
	budget.Left = c.reserved
	groups := c.dispatcher.Gather(id, func() uint64 { return c.number.Add(1) }, &budget)
	c.reserved -= budget.Left
	c.memory.ReturnClaims(budget.Left)
	if budget.Short {
		c.memory.WakeWhenFree(c)
	}
	asked := c.stalls.begin()
	for i := range groups {
		groups[i].Asked = asked
		c.leases.Expect(groups[i].Slots)
	}
	return groups
}
