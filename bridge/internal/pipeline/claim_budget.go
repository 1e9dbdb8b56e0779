package pipeline

import (
	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// space is the memory for what the claims of one commit bring, however many lines it asks for.
type claimBudget struct {
	left  int64
	whole int64 // what one line may bring that is asked for all that fits an answer
	short bool  // somebody is not asked for because of it
}

func (s *claimBudget) cost(ln *waitQueue) int64 {
	if ln.large {
		return s.whole
	}
	return quota.MinClaim
}

// take takes space to ask for the line too; false: there is too little.
func (s *claimBudget) reserve(ln *waitQueue) bool {
	if s.left < s.cost(ln) {
		s.short = true
		return false
	}
	s.left -= s.cost(ln)
	return true
}

// untake gives it back.
func (s *claimBudget) unreserve(ln *waitQueue) { s.left += s.cost(ln) }

// divide says how much each ask may bring: all that fits an answer where there is space for
// that, else a share, and no job that is larger than it. A line that has such a job next is
// asked for all the next time.
func (s *claimBudget) divide(asks []claimGroup) {
	small := int64(0)
	for i := range asks {
		if !asks[i].queue.large {
			small++
		}
	}
	if small == 0 {
		return
	}
	share := min(quota.MinClaim+s.left/small, s.whole)
	s.left -= small * (share - quota.MinClaim)
	for i := range asks {
		if a := &asks[i]; !a.queue.large && share < s.whole {
			a.bytes = share
		}
	}
}

// learn notes whether the line's jobs are large. again: its next one was too large for this
// ask. The broker's mu is held.
func (a *claimGroup) learn(res backends.ClaimResult) (again bool) {
	if again = a.bytes > 0 && res.More && len(res.Jobs) == 0; again {
		a.queue.large = true
	} else if a.queue.large {
		a.queue.large = quota.JobBytes(res.Jobs) > quota.MinClaim
	}
	return again
}

// kept is what a broker has claimed ahead, in bytes of payload. Its mu guards it.
type prefetchedBytes struct{ bytes, reported int64 }

// keptStep is by how much the buffers may know less of it, or more.
const prefetchStep = 64 << 10

// keep counts what is claimed ahead, or with n below 0 is so no more. b.mu is held.
func (b *dispatcher) countPrefetched(n int64) {
	k := &b.prefetchBytes
	k.bytes += n
	if diff := k.bytes - k.reported; b.memory != nil && (diff >= prefetchStep || diff <= -prefetchStep || k.bytes == 0 && diff != 0) {
		k.reported = k.bytes
		b.memory.AddPrefetched(diff)
	}
}

// mayKeep reports whether there is memory to claim ahead. b.mu is held.
func (b *dispatcher) mayPrefetch() bool {
	return b.prefetchBytes.bytes < prefetchTotalMax && (b.memory == nil || !b.memory.Scarce.Load())
}
