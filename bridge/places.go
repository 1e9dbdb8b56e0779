package bridge

import (
	"sync"

	"github.com/qsidecar/qsidecar/protocol"
)

// places count the jobs that a session holds, in all databases, so that claims of it that
// are asked for together do not hold more than it may: a claim takes a place for each job
// that it may get before the database is asked, and gives back what it did not get.
type places struct {
	mu      sync.Mutex
	held    int  // jobs that are the session's
	claimed int  // places of claims that are not answered yet
	short   bool // a claim waits for places that are claimed
}

// take takes up to want places under a limit. none: there is none, and full: each place is
// that of a job, so that waiting for other claims' answers does not help.
func (p *places) take(want, most int) (n int, full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = min(want, most-p.held-p.claimed)
	if n > 0 {
		p.claimed += n
		return n, false
	}
	full = p.held >= most
	p.short = p.short || !full
	return 0, full
}

// answered gives back the places of a claim, of which so many are now those of jobs.
// short: a claim waited for that.
func (p *places) answered(taken, held int) (short bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claimed -= taken
	p.held += held
	short, p.short = p.short, false
	return short
}

// bind takes places for jobs that come from elsewhere; false: there are too few.
func (p *places) bind(n, most int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > 0 && p.held+p.claimed+n > most {
		return false
	}
	p.held += n
	return true
}

// free gives back places of jobs.
func (p *places) free(n int) {
	p.mu.Lock()
	p.held -= n
	p.mu.Unlock()
}

func (p *places) count() (held int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// mostHeld is how many jobs the session may hold.
func (s *session) mostHeld() int { return s.bridge.plan.Load().opts.Limits.Held }

// tooMany is the answer to who would hold more jobs than it may.
func (s *session) tooMany() *protocol.Error {
	return protocol.Errorf(protocol.CodeBusy, "this connection holds %d jobs, and its limit is %d (limits.held in the sidecar's config): settle some first",
		s.places.count(), s.mostHeld())
}

// placed ends a claim's hold on places. What waited for them is asked for again.
func (s *session) placed(taken, held int) {
	if taken > 0 && s.places.answered(taken, held) {
		for _, b := range s.bridge.plan.Load().banks {
			b.committer.wakeClaims()
		}
	}
}
