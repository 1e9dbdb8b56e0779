package quota

import (
	"sync"
)

// JobQuota counts the jobs that a session holds, in all databases. Before a claim queries the database, it reserves
// quota for each job that it can get. Afterwards it returns what it did not use. So concurrent claims together never
// exceed the limit.
//
// A session can hold one job alone (see backends.Job.Alone). Then it gets no others until that job has ended.
type JobQuota struct {
	mu       sync.Mutex
	held     int  // jobs that the session holds
	reserved int  // quota of claims without a reply yet
	short    bool // a claim waits for quota that other claims have reserved
	use      use
}

// use is what a session can get.
type use int

const (
	open     use = iota // any jobs
	emptying            // none: a job waits to be alone in the session
	probing             // none until the session is empty, then one: possibly the job that waited comes back
	alone               // none until the session is empty: it has a job alone
)

// Reserve reserves up to want jobs under the limit most. If n is 0 and full is true, the session holds that many jobs
// already. If full is false, other claims have reserved the rest, or the session has, or waits for, a job alone. If probe is
// true, the session ran empty for a job that went back: the claim should get the first job that there is.
func (p *JobQuota) Reserve(want, most int) (n int, full, probe bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if probe = p.use == probing && p.isEmpty(0); probe {
		want = 1
	} else if p.use != open {
		p.short = true
		return 0, false, false
	}
	n = min(want, most-p.held-p.reserved)
	if n > 0 {
		p.reserved += n
		return n, false, probe
	}
	full = p.held >= most
	p.short = p.short || !full
	return 0, full, false
}

// isEmpty reports whether the session has nothing but a claim's own reservation. p.mu is held.
func (p *JobQuota) isEmpty(own int) bool { return p.held == 0 && p.reserved == own }

// Exclusive reports whether the session has a job alone, or is kept free for one.
func (p *JobQuota) Exclusive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.use != open
}

// TakeAlone reserves the session for one job of a claim, which has reserved own jobs. It returns false if the session
// holds or expects others. A session that is emptied serves only the job that it is emptied for.
func (p *JobQuota) TakeAlone(own int, emptied bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.isEmpty(own) || p.use == alone || p.use == emptying && !emptied {
		return false
	}
	p.use, p.reserved = alone, 1
	return true
}

// Empty lets the session run empty, for a job that waits to be alone in it, unless it does so for another job or has one
// alone.
func (p *JobQuota) Empty() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.use == open || p.use == probing {
		p.use = emptying
	}
}

// CanEmpty reports whether the session neither runs empty for a job nor has one alone.
func (p *JobQuota) CanEmpty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.use == open || p.use == probing
}

// Emptying reports whether the session runs empty for a job that waits.
func (p *JobQuota) Emptying() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.use == emptying
}

// Probe ends Empty if the session is empty: it gets one job first. It reports whether it did.
func (p *JobQuota) Probe() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.use != emptying || !p.isEmpty(0) {
		return false
	}
	p.use = probing
	return true
}

// Reopen ends Empty. If probe is set, the job went back to the database: the session still runs empty, and then gets
// one job first.
func (p *JobQuota) Reopen(probe bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.use != emptying {
		return
	}
	if p.use = open; probe {
		p.use = probing
	}
}

// BindAlone records that one of the session's jobs must be alone: it gets no others.
func (p *JobQuota) BindAlone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.use = alone
}

// settle ends the reservation of a claim for taken jobs that got held jobs. It reports whether another claim waited
// for that.
func (p *JobQuota) settle(taken, held int) (short bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.use == probing && p.isEmpty(taken) {
		p.use = open // the claim was the probe
	}
	p.reserved -= taken
	p.held += held
	p.ended()
	short, p.short = p.short || p.use == emptying && p.isEmpty(0), false
	return short
}

// ended opens a session whose only job has ended. p.mu is held.
func (p *JobQuota) ended() {
	if p.use == alone && p.isEmpty(0) {
		p.use = open
	}
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

// release removes jobs that the session no longer holds. It reports whether claims waited for the session to be empty,
// and it is.
func (p *JobQuota) release(n int) (emptied bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held -= n
	emptied = p.use != open && p.isEmpty(0)
	p.ended()
	return emptied
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

// ReleaseJobs removes jobs that the session no longer holds. Claims that waited until it is empty are included in the
// next commit.
func (a *Session) ReleaseJobs(n int) {
	if a.Jobs.release(n) {
		a.Client.WakeClaims()
	}
}
