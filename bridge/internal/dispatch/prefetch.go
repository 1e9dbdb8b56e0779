package dispatch

import (
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Prefetch. A worker that claims one job at a time waits for two commits per job, the claim's and the ack's. If the
// workers of a wait queue claim jobs at a steady rate, the sidecar claims the next jobs before the workers ask.
// Then they wait only for the commit of the ack.
const (
	// What the wait queue takes in prefetchCommits commits is prefetched: the next claim waits for the commit under way and
	// for its own, and commits vary. More would only keep jobs from the workers of other hosts.
	prefetchCommits = 4
	prefetchLeast   = 10 * time.Millisecond
	prefetchMost    = 120 * time.Millisecond // a job must not reach prefetchAge of package pipeline
	// prefetchJobsMax bounds the jobs that are prefetched for a wait queue.
	prefetchJobsMax = 500
	// prefetchBytesMax bounds their payloads.
	prefetchBytesMax = 4 << 20
	// prefetchTotalMax bounds the payloads of the prefetched jobs of all wait queues of a database. Above it, nothing
	// more is prefetched.
	prefetchTotalMax = 32 << 20
	paceWindow       = 10 * time.Millisecond
	paceIdle         = time.Second // a wait queue without a claim for that long forgets its pace
)

// prefetch holds the prefetched jobs of one wait queue.
type prefetch struct {
	jobs     []backends.Job  // in the order of claims
	since    []time.Duration // when each of them was claimed
	asked    []time.Duration // Group.Asked of each
	bytes    int64
	pace     pace
	inCommit bool // in the commit under way
}

// take takes the first n jobs. They share the memory of the others, which no later job overwrites.
func (p *prefetch) take(n int) []backends.Job {
	jobs := p.jobs[:n:n]
	p.jobs, p.since, p.asked = p.jobs[n:], p.since[n:], p.asked[n:]
	if len(p.jobs) == 0 {
		p.jobs, p.since, p.asked = nil, nil, nil
	}
	for i := range jobs {
		p.bytes -= int64(len(jobs[i].Payload))
	}
	return jobs
}

// fitting returns how many jobs, of at most n, fit into an answer. One always does.
func (p *prefetch) fitting(n int, most int64) int {
	n = min(n, len(p.jobs))
	for i := range n {
		if most -= int64(len(p.jobs[i].Payload)); most < 0 {
			return max(i, 1)
		}
	}
	return n
}

// missing returns how many jobs to prefetch now if the queues have so many. commit is the time of a commit that claims.
func (p *prefetch) missing(now, commit time.Duration) int {
	if p.inCommit || p.bytes >= prefetchBytesMax/2 {
		return 0
	}
	ahead := max(prefetchLeast, min(prefetchCommits*commit, prefetchMost))
	target := min(int(p.pace.perSecond(now, commit)*ahead.Seconds()), prefetchJobsMax)
	if missing := target - len(p.jobs); missing > target/2 {
		return missing
	}
	return 0
}

// prefetchedBytes counts the payload of prefetched jobs.
type prefetchedBytes struct{ bytes, reported int64 }

// prefetchStep is by how many bytes the count can differ from the last report to quota.Memory.
const prefetchStep = 64 << 10

// countPrefetched adds n bytes, which can be negative, to the count of prefetched payload.
func (m *matcher) countPrefetched(n int64) {
	p := &m.prefetchBytes
	p.bytes += n
	if diff := p.bytes - p.reported; diff >= prefetchStep || diff <= -prefetchStep || p.bytes == 0 && diff != 0 {
		p.reported = p.bytes
		m.Memory.AddPrefetched(diff)
	}
}

// mayPrefetch reports whether there is memory to prefetch.
func (m *matcher) mayPrefetch() bool {
	return m.prefetchBytes.bytes < prefetchTotalMax && !m.Memory.Scarce.Load()
}

// wantsPrefetch returns how many slots of a claim group are for prefetch: no more than the jobs that the wait queue can
// expect besides those of its claims.
func (m *matcher) wantsPrefetch(wq *waitQueue, room int) int {
	if !m.CanPrefetch || wq.noPrefetch || m.stopped != nil || !m.mayPrefetch() {
		return 0
	}
	return max(0, min(wq.prefetch.missing(m.Clock(), m.claimTime), wq.expected, room))
}

// inUse reports whether a wait queue without claims must be kept, for its jobs or to learn its pace.
func (m *matcher) inUse(wq *waitQueue) bool {
	a := &wq.prefetch
	return a.inCommit || wq.committing || len(a.jobs) > 0 || m.CanPrefetch && !wq.noPrefetch && a.pace.moves(m.Clock(), m.claimTime)
}

func (m *matcher) noteClaimTime(took time.Duration) {
	m.claimTime = max(took, m.claimTime-m.claimTime/8)
}

// pace is the rate at which a wait queue takes jobs: the second highest of the last windows. So a burst, such as thirty
// workers that start at once and then work for seconds, does not count as a stream, and a stream that had to wait for a slow
// commit still does. A window covers two commits: workers that wait for each of them have jobs in each window.
type pace struct {
	since time.Duration // beginning of the current window
	n     int
	rates [4]float64 // jobs per second, latest first
}

func (p *pace) add(n int, now, commit time.Duration) {
	p.roll(now, commit)
	p.n += n
}

func (p *pace) roll(now, commit time.Duration) {
	took := now - p.since
	if took < max(paceWindow, min(2*commit, paceIdle)) {
		return
	}
	copy(p.rates[1:], p.rates[:3])
	p.rates[0] = float64(p.n) / took.Seconds()
	if took > paceIdle {
		p.rates = [4]float64{}
	}
	p.since, p.n = now, 0
}

// moves reports whether a job was taken in the last windows.
func (p *pace) moves(now, commit time.Duration) bool {
	p.roll(now, commit)
	return p.n > 0 || slices.Max(p.rates[:]) > 0
}

// perSecond returns the rate. It isn't the highest one: that can be a burst.
func (p *pace) perSecond(now, commit time.Duration) float64 {
	p.roll(now, commit)
	last := p.rates
	slices.Sort(last[:])
	return last[len(last)-2]
}

// isExpired reports whether a job must not start any more. asked is the Group.Asked of its claim, so it is over a little too early
// rather than too late.
func (m *matcher) isExpired(j *backends.Job, asked time.Duration) bool {
	return j.StartWithin > 0 && m.Clock() >= asked+j.StartWithin
}

// setExpiredAside moves expired jobs out of the wait queue if one is among the first n. The prefetcher releases them.
func (m *matcher) setExpiredAside(wq *waitQueue, n int) {
	a := &wq.prefetch
	found := false
	for i := range min(n, len(a.jobs)) {
		found = found || m.isExpired(&a.jobs[i], a.asked[i])
	}
	if !found {
		return
	}
	all, since, asked, before := a.jobs, a.since, a.asked, a.bytes
	a.jobs, a.since, a.asked, a.bytes = nil, nil, nil, 0
	var gone []backends.Job
	for i := range all {
		if m.isExpired(&all[i], asked[i]) {
			gone = append(gone, all[i])
			continue
		}
		a.jobs, a.since, a.asked = append(a.jobs, all[i]), append(a.since, since[i]), append(a.asked, asked[i])
		a.bytes += int64(len(all[i].Payload))
	}
	wq.hold(gone, -1)
	m.countPrefetched(a.bytes - before)
	wq.interleave()
	m.markReturning(gone)
	m.expired = append(m.expired, gone...)
	m.WakePrefetcher()
}

// fromPrefetch takes prefetched jobs for the claim. It returns none for a claim with a timed lease, or of a client
// that reads too slowly. It also returns when the first one's commit began.
func (m *matcher) fromPrefetch(wq *waitQueue, r *Request) (jobs []backends.Job, asked time.Duration) {
	a := &wq.prefetch
	if len(a.jobs) == 0 || r.Template.Lease > 0 || r.Session.Overloaded() {
		return nil, 0
	}
	if sidecar := m.Identity(); sidecar == 0 || sidecar != a.jobs[0].Token.Sidecar || m.Stalled(a.asked[0]) {
		return nil, 0 // the prefetcher releases them
	}
	if m.setExpiredAside(wq, r.Slots); len(a.jobs) == 0 {
		return nil, 0
	}
	n, _, _ := r.reserve(a.fitting(r.Slots, m.MaxBytes()))
	if n == 0 {
		return nil, 0
	}
	before := a.bytes
	asked = slices.Min(a.asked[:n])
	jobs = a.take(n)
	wq.hold(jobs, -1)
	wq.handOut(jobs)
	m.countPrefetched(a.bytes - before)
	a.pace.add(n, m.Clock(), m.claimTime)
	return jobs, asked
}

// takePrefetchedOfOthers takes prefetched jobs of the claim's queues that it cannot get: another wait queue has
// them, or its lease is timed. Otherwise it would find the queue empty because of this sidecar's own prefetch.
func (m *matcher) takePrefetchedOfOthers(r *Request) (out []backends.Job) {
	for _, q := range r.queue.queues {
		for wq := range m.byQueue[q] {
			if len(wq.prefetch.jobs) > 0 && (wq != r.queue || r.Template.Lease > 0) {
				out = append(out, m.drainPrefetch(wq, 0)...)
				wq.prefetch.pace = pace{since: m.Clock()}
			}
		}
	}
	return out
}

// prefetchJobs keeps jobs for the wait queue after it has served the claims that arrived since. It returns those
// that must go back.
func (m *matcher) prefetchJobs(wq *waitQueue, jobs []backends.Job, asked time.Duration) (back []backends.Job) {
	if len(jobs) == 0 {
		return nil
	}
	if m.stopped != nil {
		m.markReturning(jobs)
		return jobs
	}
	now, before := m.Clock(), wq.prefetch.bytes
	for i := range jobs {
		wq.prefetch.since, wq.prefetch.asked = append(wq.prefetch.since, now), append(wq.prefetch.asked, asked)
		wq.prefetch.bytes += int64(len(jobs[i].Payload))
	}
	if wq.prefetch.jobs == nil {
		wq.prefetch.jobs = jobs
	} else {
		wq.prefetch.jobs = append(wq.prefetch.jobs, jobs...)
	}
	m.countPrefetched(wq.prefetch.bytes - before)
	wq.hold(jobs, 1)
	wq.interleave()
	for r := range wq.requests {
		if len(wq.prefetch.jobs) == 0 {
			break
		}
		if r.inCommit {
			continue
		}
		if got, asked := m.fromPrefetch(wq, r); len(got) > 0 {
			m.remove(r)
			r.Session.AddClaimed(got)
			r.end(Answer{Jobs: got, Asked: asked, At: m.Clock(), Unrecorded: true})
		}
	}
	if m.queues[wq.key] != wq { // the wait queue was dropped since then, and no claim would find the jobs in it
		return m.drainPrefetch(wq, 0)
	}
	m.attend(wq)
	return nil
}

// drainPrefetch takes the jobs prefetched before limit (0: all).
func (m *matcher) drainPrefetch(wq *waitQueue, limit time.Duration) (out []backends.Job) {
	a := &wq.prefetch
	n, before := 0, a.bytes
	if wq.rotation != nil && limit > 0 {
		a.oldestFirst()
	}
	for n < len(a.jobs) && (limit == 0 || a.since[n] < limit) {
		n++
	}
	if n > 0 && wq.rotation == nil && len(wq.queues) > 1 { // in strict order the others can be of a queue behind these
		n = len(a.jobs)
	}
	out = a.take(n)
	wq.hold(out, -1)
	m.countPrefetched(a.bytes - before)
	wq.interleave()
	m.markReturning(out)
	return out
}

// markReturning counts jobs that go back to the database.
func (m *matcher) markReturning(jobs []backends.Job) {
	for i := range jobs {
		m.returning[jobs[i].Queue]++
	}
}

// isReturning reports whether a job of one of the queues is on its way back.
func (m *matcher) isReturning(queues []string) bool {
	return slices.ContainsFunc(queues, func(q string) bool { return m.returning[q] > 0 })
}

// comesBack reports whether a job on its way back precedes those of another queue, in strict order. For its claims it is first, as if it
// had never been prefetched.
func (m *matcher) comesBack(wq *waitQueue) bool {
	return wq.rotation == nil && len(m.returning) > 0 && m.isReturning(wq.queues[:len(wq.queues)-1])
}

// returned reports whether a claim was held for a job on its way back.
func (m *matcher) returned(queues []string) (held bool) {
	for _, q := range queues {
		if m.returning[q]--; m.returning[q] <= 0 {
			delete(m.returning, q)
		}
		for wq := range m.byQueue[q] {
			held = m.retryDeferred(wq) || held
		}
	}
	return held
}

// mostHolds is how often a claim is held for admissions, settles, or a job that precedes others. One admission runs at a time, and one more can be
// pending, so all those that began before the claim are over then. Without a limit, the jobs of others could hold it indefinitely.
const mostHolds = 2

// hold reports whether a claim waits for an admission, a settle, or a job that precedes others.
func (r *Request) hold() bool {
	if r.holds == mostHolds {
		return false
	}
	r.holds++
	return true
}

// holdForOthers reports whether a claim for which there is no job is held until an admission in one of its queues is over, or a settle
// that frees a slot of its cap.
func (m *matcher) holdForOthers(r *Request) bool {
	return slices.ContainsFunc(r.Queues, func(q string) bool { return m.admitting[q] > 0 || m.settling[q] > 0 }) && r.hold()
}

// settled reports whether a claim was held for the end of a settle.
func (m *matcher) settled(queues []string) (held bool) {
	for _, q := range queues {
		if m.settling[q]--; m.settling[q] <= 0 {
			delete(m.settling, q)
		}
		for wq := range m.byQueue[q] {
			held = m.retryDeferred(wq) || held
		}
	}
	return held
}

// admitted reports whether a claim was held for the end of an admission.
func (m *matcher) admitted(queues []string) (held bool) {
	for _, q := range queues {
		if m.admitting[q]--; m.admitting[q] <= 0 {
			delete(m.admitting, q)
		}
		for wq := range m.byQueue[q] {
			wq.changes++
			held = m.retryDeferred(wq) || held
		}
	}
	return held
}

func (m *matcher) takePrefetched(limit time.Duration) (out []backends.Job, left bool) {
	now := m.Clock()
	out = m.drainAlone(func(k *keptJob) bool { return limit == 0 || k.old(now) })
	out, m.expired = append(out, m.expired...), nil
	left = len(m.alone) > 0
	for wq := range m.attended {
		back := m.drainPrefetch(wq, limit)
		if len(back) > 0 {
			out = append(out, back...)
			wq.prefetch.pace = pace{since: now} // no claim used the jobs: start to measure again
		}
		if wq.len() > 0 { // a client that reads too slowly leaves its jobs here
			if len(wq.prefetch.jobs) > 0 {
				left = true
			} else {
				delete(m.attended, wq)
			}
			continue
		}
		if m.inUse(wq) {
			left = true
		} else {
			m.drop(wq)
		}
	}
	return out, left
}
