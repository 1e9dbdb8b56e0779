package pipeline

import (
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Jobs that must be alone (see backends.Job.Alone). A claim of a session that holds nothing gets such a job as its only
// one. If no such session claims, the dispatcher keeps the job and lets one session run empty: its other claims wait, and
// find out about no job. The job goes to that session or to another empty one, whichever claims first. So a busy session
// can't starve it, and each of these jobs stops at most one session. After aloneAge the job goes back to the database, so
// that a pause applies to it and other sidecars can take it. The session waits for as long again, in case the next claim
// returns the job.
//
// quota.JobQuota has the state of the session. It refuses every other claim of the session, in all databases.

// aloneAge is how long a job is kept, and how long its session then waits for it to come back.
const aloneAge = time.Second

// keptJob is a job that waits for a session to run empty.
type keptJob struct {
	backends.Job
	session *quota.Session // runs empty for it
	since   time.Duration
	asked   time.Duration // claimGroup.asked
	gone    bool          // it went back to the database at that time
}

// old reports whether the job must go back, or did and did not return.
func (k *keptJob) old(now time.Duration) bool { return now-k.since >= aloneAge }

// withoutAlone moves jobs that must be alone from jobs to apart.
func withoutAlone(jobs []backends.Job, apart *[]backends.Job) []backends.Job {
	if !slices.ContainsFunc(jobs, isAlone) {
		return jobs
	}
	for i := range jobs {
		if jobs[i].Alone {
			*apart = append(*apart, jobs[i])
		}
	}
	return slices.DeleteFunc(jobs, isAlone)
}

func isAlone(j backends.Job) bool { return j.Alone }

// ownJobs returns the jobs of a session lease that the claim gets, of those that its slots claimed. It adds the others to
// apart. A claim of a session without jobs gets one that must be alone if it has no others. b.mu is held.
func (b *dispatcher) ownJobs(w *ClaimRequest, jobs []backends.Job, apart *[]backends.Job) []backends.Job {
	before := len(*apart)
	if jobs = withoutAlone(jobs, apart); len(jobs) > 0 || len(*apart) == before || !w.takeAlone(false) {
		return jobs
	}
	jobs = []backends.Job{(*apart)[before]}
	*apart = slices.Delete(*apart, before, before+1)
	return jobs
}

// takeAlone reserves the claim's session for one job. It returns false if the session has others, or can't get any.
func (w *ClaimRequest) takeAlone(emptied bool) bool {
	if w.inCommit || w.Template.Lease > 0 || w.Session.Overloaded() || !w.Session.Jobs.TakeAlone(w.Reserved, emptied) {
		return false
	}
	w.Reserved = 1
	return true
}

// keepAlone gives jobs to claims of empty sessions, or keeps them and lets a session run empty for each. It returns those
// for which there is no session. empty are claims that got nothing: their sessions can run empty although they don't wait.
// b.mu is held.
func (b *dispatcher) keepAlone(jobs []backends.Job, asked time.Duration, empty []*ClaimRequest) (back []backends.Job) {
	now := b.clock()
	for i := range jobs {
		k := keptJob{Job: jobs[i], since: now, asked: asked}
		b.countPrefetched(int64(len(k.Payload)))
		if b.stopped == nil {
			if k.session = b.sessionToEmpty(k.Queue, empty); b.handAlone(&k) {
				continue
			}
		}
		if k.session == nil {
			back = append(back, k.Job)
			b.countPrefetched(-int64(len(k.Payload)))
			continue
		}
		b.alone = append(b.alone, k)
	}
	if len(b.alone) > 0 {
		b.wakePrefetcher()
	}
	b.markReturning(back)
	return back
}

// sessionToEmpty chooses the session that runs empty for a job of the queue: one that already does so for a job that went
// back, or else the one with the fewest jobs. b.mu is held.
func (b *dispatcher) sessionToEmpty(queue string, empty []*ClaimRequest) (chosen *quota.Session) {
	if s := b.takeGone(queue); s != nil {
		return s
	}
	least, preferred := 0, false
	consider := func(w *ClaimRequest) {
		s := w.Session
		if w.Template.Lease > 0 || w.leaving || s.Overloaded() || !s.Jobs.CanEmpty() {
			return
		}
		held, probing := s.Jobs.Count(), s.Jobs.Exclusive()
		if chosen == nil || probing && !preferred || probing == preferred && held < least {
			chosen, least, preferred = s, held, probing
		}
	}
	for _, w := range empty {
		consider(w)
	}
	for wq := range b.byQueue[queue] {
		for w := range wq.requests {
			consider(w)
		}
	}
	if chosen != nil {
		chosen.Jobs.Empty()
	}
	return chosen
}

// takeGone returns a session that still runs empty for a job of the queue that went back, and forgets that job. It returns
// nil if there is none. b.mu is held.
func (b *dispatcher) takeGone(queue string) *quota.Session {
	i := slices.IndexFunc(b.alone, func(k keptJob) bool { return k.gone && k.Queue == queue && k.session.Jobs.Emptying() })
	if i < 0 {
		return nil
	}
	s := b.alone[i].session
	b.alone = slices.Delete(b.alone, i, i+1)
	return s
}

// mayHandOut reports whether a kept job is here, and nothing has happened since its claim that forbids its hand-out.
func (b *dispatcher) mayHandOut(k *keptJob) bool {
	return !k.gone && b.identity() == k.Token.Host && !b.stalls.since(k.asked)
}

// handAlone gives a job to a waiting claim of an empty session, if there is one. b.mu is held.
func (b *dispatcher) handAlone(k *keptJob) bool {
	if !b.mayHandOut(k) {
		return false
	}
	for wq := range b.byQueue[k.Queue] {
		for w := range wq.requests {
			if w.takeAlone(w.Session == k.session) {
				b.remove(w)
				w.end(b.answerAlone(w, k))
				return true
			}
		}
	}
	return false
}

// answerAlone returns the answer of a claim that gets the job. b.mu is held.
func (b *dispatcher) answerAlone(w *ClaimRequest, k *keptJob) Answer {
	b.countPrefetched(-int64(len(k.Payload)))
	if k.session != nil && k.session != w.Session {
		k.session.Jobs.Reopen(false)
		k.session.Client.WakeClaims()
	}
	return b.answer(w, []backends.Job{k.Job}, k.asked)
}

// answer returns the answer of a claim that gets jobs. b.mu is held.
func (b *dispatcher) answer(w *ClaimRequest, jobs []backends.Job, asked time.Duration) Answer {
	w.Session.AddClaimed(jobs)
	return Answer{Jobs: jobs, asked: asked, prefetched: jobs[0].Alone && (b.noPrefetch == nil || !b.noPrefetch(jobs[0].Queue))}
}

// serveAlone gives kept jobs to sessions that are empty by now. If a session's job is back in the database, the session
// claims it. b.mu is held.
func (b *dispatcher) serveAlone() {
	if len(b.alone) > 0 {
		b.alone = slices.DeleteFunc(b.alone, func(k keptJob) bool {
			return b.handAlone(&k) || k.gone && b.returning[k.Queue] == 0 && k.session.Jobs.Probe()
		})
	}
}

// mayReturn reports whether the job for which the claim's session ran empty is on its way back to the database. b.mu is held.
func (b *dispatcher) mayReturn(w *ClaimRequest) bool {
	return w.Session.Jobs.Count() == 0 && b.isReturning(w.Queues)
}

// fromAlone gives a new claim a kept job of its queues, if its session is empty. b.mu is held.
func (b *dispatcher) fromAlone(w *ClaimRequest, queues []string) (a Answer, ok bool) {
	for i := range b.alone {
		k := &b.alone[i]
		if slices.Contains(queues, k.Queue) && b.mayHandOut(k) && w.takeAlone(w.Session == k.session) {
			a = b.answerAlone(w, k)
			b.alone = slices.Delete(b.alone, i, i+1)
			return a, true
		}
	}
	return Answer{}, false
}

// drainAlone takes the kept jobs for which the function returns true. b.mu is held.
func (b *dispatcher) drainAlone(back func(k *keptJob) bool) (out []backends.Job) {
	now := b.clock()
	left := b.alone[:0]
	for _, k := range b.alone {
		switch {
		case !back(&k):
			left = append(left, k)
		case k.gone:
			k.session.Jobs.Reopen(true)
			k.session.Client.WakeClaims()
		default:
			out = append(out, k.Job)
			b.countPrefetched(-int64(len(k.Payload)))
			left = append(left, keptJob{Job: backends.Job{Queue: k.Queue}, session: k.session, since: now, gone: true})
		}
	}
	clear(b.alone[len(left):])
	b.alone = left
	b.markReturning(out)
	return out
}

// keptAlone counts the jobs that wait to be alone. b.mu is held.
func (b *dispatcher) keptAlone() (n int) {
	for i := range b.alone {
		if !b.alone[i].gone {
			n++
		}
	}
	return n
}
