package quota

import (
	"sync"
)

// JobQuota count the jobs that a session holds, in all databases, so that claims of it that
// are asked for together do not hold more than it may: a claim takes a place for each job
// that it may get before the database is asked, and gives back what it did not get.
type JobQuota struct {
	mu       sync.Mutex
	held     int  // jobs that are the session's
	reserved int  // jobQuota of claims that are not answered yet
	short    bool // a claim waits for jobQuota that are claimed
}

// Reserve takes up to want jobQuota under a limit. none: there is none, and full: each place is
// that of a job, so that waiting for other claims' answers does not help.
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

// settle gives back the jobQuota of a claim, of which so many are now those of jobs.
// short: a claim waited for that.
func (p *JobQuota) settle(taken, held int) (short bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved -= taken
	p.held += held
	short, p.short = p.short, false
	return short
}

// Bind takes jobQuota for jobs that come from elsewhere; false: there are too few.
func (p *JobQuota) Bind(n, most int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > 0 && p.held+p.reserved+n > most {
		return false
	}
	p.held += n
	return true
}

// Release gives back jobQuota of jobs.
func (p *JobQuota) Release(n int) {
	p.mu.Lock()
	p.held -= n
	p.mu.Unlock()
}

func (p *JobQuota) Count() (held int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// SettleJobs ends a claim's hold on places. The claims that waited for them are asked for again.
func (a *Session) SettleJobs(taken, held int) {
	if taken > 0 && a.Jobs.settle(taken, held) {
		a.Client.WakeClaims()
	}
}
