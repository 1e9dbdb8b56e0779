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
func (j *JobQuota) Reserve(want, most int) (n int, full, probe bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if probe = j.use == probing && j.isEmpty(0); probe {
		want = 1
	} else if j.use != open {
		j.short = true
		return 0, false, false
	}
	n = min(want, most-j.held-j.reserved)
	if n > 0 {
		j.reserved += n
		return n, false, probe
	}
	full = j.held >= most
	j.short = j.short || !full
	return 0, full, false
}

// isEmpty reports whether the session has nothing but a claim's own reservation. j.mu is held.
func (j *JobQuota) isEmpty(own int) bool { return j.held == 0 && j.reserved == own }

// Exclusive reports whether the session has a job alone, or is kept free for one.
func (j *JobQuota) Exclusive() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.use != open
}

// TakeAlone reserves the session for one job of a claim, which has reserved own jobs. It returns false if the session
// holds or expects others. A session that is emptied serves only the job that it is emptied for.
func (j *JobQuota) TakeAlone(own int, emptied bool) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.isEmpty(own) || j.use == alone || j.use == emptying && !emptied {
		return false
	}
	j.use, j.reserved = alone, 1
	return true
}

// Empty lets the session run empty, for a job that waits to be alone in it, unless it does so for another job or has one
// alone.
func (j *JobQuota) Empty() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.use == open || j.use == probing {
		j.use = emptying
	}
}

// CanEmpty reports whether the session neither runs empty for a job nor has one alone.
func (j *JobQuota) CanEmpty() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.use == open || j.use == probing
}

// Emptying reports whether the session runs empty for a job that waits.
func (j *JobQuota) Emptying() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.use == emptying
}

// Probe ends Empty if the session is empty: it gets one job first. It reports whether it did.
func (j *JobQuota) Probe() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.use != emptying || !j.isEmpty(0) {
		return false
	}
	j.use = probing
	return true
}

// Reopen ends Empty. If probe is set, the job went back to the database: the session still runs empty, and then gets
// one job first.
func (j *JobQuota) Reopen(probe bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.use != emptying {
		return
	}
	if j.use = open; probe {
		j.use = probing
	}
}

// BindAlone records that one of the session's jobs must be alone: it gets no others.
func (j *JobQuota) BindAlone() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.use = alone
}

// settle ends the reservation of a claim for taken jobs that got held jobs. It reports whether another claim waited
// for that.
func (j *JobQuota) settle(taken, held int) (short bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.use == probing && j.isEmpty(taken) {
		j.use = open // the claim was the probe
	}
	j.reserved -= taken
	j.held += held
	j.ended()
	short, j.short = j.short || j.use == emptying && j.isEmpty(0), false
	return short
}

// ended opens a session whose only job has ended. j.mu is held.
func (j *JobQuota) ended() {
	if j.use == alone && j.isEmpty(0) {
		j.use = open
	}
}

// Bind adds jobs that were claimed elsewhere. It returns false if that would exceed the limit most.
func (j *JobQuota) Bind(n, most int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if n > 0 && j.held+j.reserved+n > most {
		return false
	}
	j.held += n
	return true
}

// release removes jobs that the session no longer holds. It reports whether claims waited for the session to be empty,
// and it is.
func (j *JobQuota) release(n int) (emptied bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.held -= n
	emptied = j.use != open && j.isEmpty(0)
	j.ended()
	return emptied
}

// Count returns how many jobs the session holds.
func (j *JobQuota) Count() (held int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.held
}

// SettleJobs ends a claim's reservation of taken jobs, of which it got held. Claims that waited for the quota are
// included in the next commit.
func (s *Session) SettleJobs(taken, held int) {
	if taken > 0 && s.Jobs.settle(taken, held) {
		s.Client.WakeClaims()
	}
}

// ReleaseJobs removes jobs that the session no longer holds. Claims that waited until it is empty are included in the
// next commit.
func (s *Session) ReleaseJobs(n int) {
	if s.Jobs.release(n) {
		s.Client.WakeClaims()
	}
}
