package dispatch

import (
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// Jobs that must be alone (see backends.Job.Alone). A claim of a session that holds nothing gets such a job as its only
// one. If no such session claims, the matcher keeps the job and lets one session run empty: its other claims wait, and
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
	asked   time.Duration // Group.Asked
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
// apart. A claim of a session without jobs gets one that must be alone if it has no others.
func (m *matcher) ownJobs(r *Request, jobs []backends.Job, apart *[]backends.Job) []backends.Job {
	before := len(*apart)
	if jobs = withoutAlone(jobs, apart); len(jobs) > 0 || len(*apart) == before || !r.takeAlone(false) {
		return jobs
	}
	jobs = []backends.Job{(*apart)[before]}
	*apart = slices.Delete(*apart, before, before+1)
	return jobs
}

// takeAlone reserves the claim's session for one job. It returns false if the session has others, or can't get any.
func (r *Request) takeAlone(emptied bool) bool {
	if r.inCommit || r.Template.Lease > 0 || r.Session.Overloaded() || !r.Session.Jobs.TakeAlone(r.Reserved, emptied) {
		return false
	}
	r.Reserved = 1
	return true
}

// keepAlone gives jobs to claims of empty sessions, or keeps them and lets a session run empty for each. It returns those
// for which there is no session. empty are claims that got nothing: their sessions can run empty although they don't wait.
func (m *matcher) keepAlone(jobs []backends.Job, asked time.Duration, empty []*Request) (back []backends.Job) {
	now := m.Clock()
	for i := range jobs {
		k := keptJob{Job: jobs[i], since: now, asked: asked}
		m.countPrefetched(int64(len(k.Payload)))
		if m.stopped == nil {
			if k.session = m.sessionToEmpty(k.Queue, empty); m.handAlone(&k) {
				continue
			}
		}
		if k.session == nil {
			back = append(back, k.Job)
			m.countPrefetched(-int64(len(k.Payload)))
			continue
		}
		m.alone = append(m.alone, k)
	}
	if len(m.alone) > 0 {
		m.WakePrefetcher()
	}
	m.markReturning(back)
	return back
}

// sessionToEmpty chooses the session that runs empty for a job of the queue: one that already does so for a job that went
// back, or else the one with the fewest jobs.
func (m *matcher) sessionToEmpty(queue string, empty []*Request) (chosen *quota.Session) {
	if gone := m.takeGone(queue); gone != nil {
		return gone
	}
	least, preferred := 0, false
	consider := func(r *Request) {
		of := r.Session
		if r.Template.Lease > 0 || r.leaving || of.Overloaded() || !of.Jobs.CanEmpty() {
			return
		}
		held, probing := of.Jobs.Count(), of.Jobs.Exclusive()
		if chosen == nil || probing && !preferred || probing == preferred && held < least {
			chosen, least, preferred = of, held, probing
		}
	}
	for _, r := range empty {
		consider(r)
	}
	for wq := range m.byQueue[queue] {
		for r := range wq.requests {
			consider(r)
		}
	}
	if chosen != nil {
		chosen.Jobs.Empty()
	}
	return chosen
}

// takeGone returns a session that still runs empty for a job of the queue that went back, and forgets that job. It returns
// nil if there is none.
func (m *matcher) takeGone(queue string) *quota.Session {
	i := slices.IndexFunc(m.alone, func(k keptJob) bool { return k.gone && k.Queue == queue && k.session.Jobs.Emptying() })
	if i < 0 {
		return nil
	}
	session := m.alone[i].session
	m.alone = slices.Delete(m.alone, i, i+1)
	return session
}

// mayHandOut reports whether a kept job is here, and nothing has happened since its claim that forbids its hand-out.
func (m *matcher) mayHandOut(k *keptJob) bool {
	return !k.gone && m.Identity() == k.Token.Sidecar && !m.Stalled(k.asked) && !m.isExpired(&k.Job, k.asked)
}

// handAlone gives a job to a waiting claim of an empty session, if there is one.
func (m *matcher) handAlone(k *keptJob) bool {
	if !m.mayHandOut(k) {
		return false
	}
	for wq := range m.byQueue[k.Queue] {
		for r := range wq.requests {
			if r.takeAlone(r.Session == k.session) {
				m.remove(r)
				r.end(m.answerAlone(r, k))
				return true
			}
		}
	}
	return false
}

// answerAlone returns the answer of a claim that gets the job.
func (m *matcher) answerAlone(r *Request, k *keptJob) Answer {
	m.countPrefetched(-int64(len(k.Payload)))
	if k.session != nil && k.session != r.Session {
		k.session.Jobs.Reopen(false)
		k.session.Client.WakeClaims()
	}
	return m.answer(r, []backends.Job{k.Job}, k.asked)
}

// answer returns the answer of a claim that gets jobs.
func (m *matcher) answer(r *Request, jobs []backends.Job, asked time.Duration) Answer {
	r.Session.AddClaimed(jobs)
	return Answer{Jobs: jobs, Asked: asked, At: m.Clock(), Unrecorded: jobs[0].Alone && !m.NoPrefetch(jobs[0].Queue)}
}

// serveAlone gives kept jobs to sessions that are empty by now. If a session's job is back in the database, the session
// claims it.
func (m *matcher) serveAlone() {
	if len(m.alone) > 0 {
		m.alone = slices.DeleteFunc(m.alone, func(k keptJob) bool {
			return m.handAlone(&k) || k.gone && m.returning[k.Queue] == 0 && k.session.Jobs.Probe()
		})
	}
}

// mayReturn reports whether the job for which the claim's session ran empty is on its way back to the database.
func (m *matcher) mayReturn(r *Request) bool {
	return r.Session.Jobs.Count() == 0 && m.isReturning(r.Queues)
}

// fromAlone gives a new claim a kept job of its queues, if its session is empty.
func (m *matcher) fromAlone(r *Request, queues []string) (a Answer, ok bool) {
	for i := range m.alone {
		k := &m.alone[i]
		if slices.Contains(queues, k.Queue) && m.mayHandOut(k) && r.takeAlone(r.Session == k.session) {
			a = m.answerAlone(r, k)
			m.alone = slices.Delete(m.alone, i, i+1)
			return a, true
		}
	}
	return Answer{}, false
}

// drainAlone takes the kept jobs for which the function returns true.
func (m *matcher) drainAlone(back func(k *keptJob) bool) (out []backends.Job) {
	now := m.Clock()
	left := m.alone[:0]
	for _, k := range m.alone {
		switch {
		case !back(&k):
			left = append(left, k)
		case k.gone:
			k.session.Jobs.Reopen(true)
			k.session.Client.WakeClaims()
		default:
			out = append(out, k.Job)
			m.countPrefetched(-int64(len(k.Payload)))
			left = append(left, keptJob{Job: backends.Job{Queue: k.Queue}, session: k.session, since: now, gone: true})
		}
	}
	clear(m.alone[len(left):])
	m.alone = left
	m.markReturning(out)
	return out
}

// keptAlone counts the jobs that wait to be alone.
func (m *matcher) keptAlone() (n int) {
	for i := range m.alone {
		if !m.alone[i].gone {
			n++
		}
	}
	return n
}
