package bridge

import "github.com/qsidecar/qsidecar/backends"

// space is the memory for what the claims of one commit bring, however many lines it asks for.
type space struct {
	left  int64
	whole int64 // what one line may bring that is asked for all that fits an answer
	short bool  // somebody is not asked for because of it
}

func (s *space) cost(ln *line) int64 {
	if ln.large {
		return s.whole
	}
	return leastClaim
}

// take takes space to ask for the line too; false: there is too little.
func (s *space) take(ln *line) bool {
	if s.left < s.cost(ln) {
		s.short = true
		return false
	}
	s.left -= s.cost(ln)
	return true
}

// untake gives it back.
func (s *space) untake(ln *line) { s.left += s.cost(ln) }

// divide says how much each ask may bring: all that fits an answer where there is space for
// that, else a share, and no job that is larger than it. A line that has such a job next is
// asked for all the next time.
func (s *space) divide(asks []ask) {
	small := int64(0)
	for i := range asks {
		if !asks[i].line.large {
			small++
		}
	}
	if small == 0 {
		return
	}
	share := min(leastClaim+s.left/small, s.whole)
	s.left -= small * (share - leastClaim)
	for i := range asks {
		if a := &asks[i]; !a.line.large && share < s.whole {
			a.bytes = share
		}
	}
}

// learn notes whether the line's jobs are large. again: its next one was too large for this
// ask. The broker's mu is held.
func (a *ask) learn(res backends.ClaimResult) (again bool) {
	if again = a.bytes > 0 && res.More && len(res.Jobs) == 0; again {
		a.line.large = true
	} else if a.line.large {
		a.line.large = jobBytes(res.Jobs) > leastClaim
	}
	return again
}

// kept is what a broker has claimed ahead, in bytes of payload. Its mu guards it.
type kept struct{ bytes, told int64 }

// keptStep is by how much the buffers may know less of it, or more.
const keptStep = 64 << 10

// keep counts what is claimed ahead, or with n below 0 is so no more. b.mu is held.
func (b *broker) keep(n int64) {
	k := &b.kept
	k.bytes += n
	if diff := k.bytes - k.told; b.memory != nil && (diff >= keptStep || diff <= -keptStep || k.bytes == 0 && diff != 0) {
		k.told = k.bytes
		b.memory.keep(diff)
	}
}

// mayKeep reports whether there is memory to claim ahead. b.mu is held.
func (b *broker) mayKeep() bool {
	return b.kept.bytes < aheadInAll && (b.memory == nil || !b.memory.scarce.Load())
}
