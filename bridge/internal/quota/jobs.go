package quota

import (
	"sync"
)

// JobQuota counts the jobs that a session holds, in all databases. Before a claim queries the database, it reserves
// quota for each job that it can get. Afterwards it returns what it did not use. So concurrent claims together never
// exceed the limit.
type JobQuota struct {
	mu       sync.Mutex
	held     int  // jobs that the session holds
	reserved int  // quota of claims without a reply yet
	short    bool // a claim waits for quota that other claims have reserved
}

// Reserve reserves up to want jobs under the limit most. If n is 0 and full is true, the session holds that many jobs
// already. If full is false, other claims have reserved the rest.
func (p *JobQuota) Reserve(want, most int) (n int, full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = min(want, most-p.held-p.reserved)
	if n > 0 {
		p.reserved += n
		return n, false
	}
	full = p.held >= most
	p.short = p.short || !full
	return 0, full
}

// settle ends the reservation of a claim for taken jobs that got held jobs. It reports whether another claim waited
// for that.
func (p *JobQuota) settle(taken, held int) (short bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved -= taken
	p.held += held
	short, p.short = p.short, false
	return short
}

// Bind adds jobs that were claimed elsewhere. It returns false if that would exceed the limit most.
func (p *JobQuota) Bind(n, most int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > 0 && p.held+p.reserved+n > most {
		return false
	}
	p.held += n
	return true
}

// Release removes jobs that the session no longer holds.
func (p *JobQuota) Release(n int) {
	p.mu.Lock()
	p.held -= n
	p.mu.Unlock()
}

// Count returns how many jobs the session holds.
func (p *JobQuota) Count() (held int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// SettleJobs ends a claim's reservation of taken jobs, of which it got held. Claims that waited for the quota are
// included in the next commit.
func (a *Session) SettleJobs(taken, held int) {
	if taken > 0 && a.Jobs.settle(taken, held) {
		a.Client.WakeClaims()
	}
}
