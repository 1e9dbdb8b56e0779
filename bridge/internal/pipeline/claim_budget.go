package pipeline

import (
	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// claimBudget is the memory for the jobs that one commit claims, over all wait queues.
type claimBudget struct {
	left  int64
	whole int64 // the largest answer of one claim group
	short bool  // a wait queue was left out for lack of memory
}

func (s *claimBudget) cost(wq *waitQueue) int64 {
	if wq.large {
		return s.whole
	}
	return quota.MinClaim
}

// reserve takes memory for one more wait queue, and reports false if there is too little.
func (s *claimBudget) reserve(wq *waitQueue) bool {
	if s.left < s.cost(wq) {
		s.short = true
		return false
	}
	s.left -= s.cost(wq)
	return true
}

// unreserve returns what reserve took.
func (s *claimBudget) unreserve(wq *waitQueue) { s.left += s.cost(wq) }

// divide sets the byte limit of each claim group. A group gets a whole answer if there is memory for that, else an
// equal share. A wait queue whose next job exceeds its share gets a whole answer the next time.
func (s *claimBudget) divide(groups []claimGroup) {
	small := int64(0)
	for i := range groups {
		if !groups[i].queue.large && !groups[i].beside {
			small++
		}
	}
	if small == 0 {
		return
	}
	share := min(quota.MinClaim+s.left/small, s.whole)
	s.left -= small * (share - quota.MinClaim)
	for i := range groups {
		if a := &groups[i]; !a.queue.large && !a.beside && share < s.whole {
			a.bytes = share
		}
	}
}

// learn records whether the wait queue's jobs are large. It reports true if the next job was too large for this
// group. dispatcher.mu is held.
func (a *claimGroup) learn(res backends.ClaimResult) (again bool) {
	if again = a.bytes > 0 && res.More && len(res.Jobs) == 0; again {
		a.queue.large = true
	} else if a.queue.large {
		a.queue.large = quota.JobBytes(res.Jobs) > quota.MinClaim
	}
	return again
}

// prefetchedBytes counts the payload of prefetched jobs. dispatcher.mu guards it.
type prefetchedBytes struct{ bytes, reported int64 }

// prefetchStep is by how many bytes the count can differ from the last report to quota.Memory.
const prefetchStep = 64 << 10

// countPrefetched adds n bytes, which can be negative, to the count of prefetched payload. b.mu is held.
func (b *dispatcher) countPrefetched(n int64) {
	k := &b.prefetchBytes
	k.bytes += n
	if diff := k.bytes - k.reported; b.memory != nil && (diff >= prefetchStep || diff <= -prefetchStep || k.bytes == 0 && diff != 0) {
		k.reported = k.bytes
		b.memory.AddPrefetched(diff)
	}
}

// mayPrefetch reports whether there is memory to prefetch. b.mu is held.
func (b *dispatcher) mayPrefetch() bool {
	return b.prefetchBytes.bytes < prefetchTotalMax && (b.memory == nil || !b.memory.Scarce.Load())
}
