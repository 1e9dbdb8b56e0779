package dispatch

import (
	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Budget is the memory for the jobs that one commit claims, over all wait queues.
type Budget struct {
	Left  int64
	Whole int64 // the largest answer of one claim group
	Short bool  // a wait queue was left out for lack of memory
}

func (b *Budget) cost(wq *waitQueue) int64 {
	if wq.large {
		return b.Whole
	}
	return quota.MinClaim
}

// reserve takes memory for one more wait queue, and reports false if there is too little.
func (b *Budget) reserve(wq *waitQueue) bool {
	if b.Left < b.cost(wq) {
		b.Short = true
		return false
	}
	b.Left -= b.cost(wq)
	return true
}

// unreserve returns what reserve took.
func (b *Budget) unreserve(wq *waitQueue) { b.Left += b.cost(wq) }

// divide sets the byte limit of each claim group. A group gets a whole answer if there is memory for that, else an
// equal share. A wait queue whose next job exceeds its share gets a whole answer the next time.
func (b *Budget) divide(groups []Group) {
	small := int64(0)
	for i := range groups {
		if !groups[i].queue.large {
			small++
		}
	}
	if small == 0 {
		return
	}
	share := min(quota.MinClaim+b.Left/small, b.Whole)
	b.Left -= small * (share - quota.MinClaim)
	for i := range groups {
		if g := &groups[i]; !g.queue.large && share < b.Whole {
			g.Bytes = share
		}
	}
}

// learn records whether the wait queue's jobs are large. It reports true if the next job was too large for this
// group. short: for a part of it.
func (g *Group) learn(res backends.ClaimResult, short bool) (again bool) {
	if short {
		g.queue.large = true
		again = len(res.Jobs) == 0
	} else if g.queue.large {
		g.queue.large = quota.JobBytes(res.Jobs) > quota.MinClaim
	}
	return again
}
