package pipeline

import (
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
)

// Prefetch. A worker that claims one job at a time waits for two commits per job, the claim's and the ack's. If the
// workers of a wait queue claim jobs at a steady rate, the committer claims the next jobs before the workers ask.
// Then they wait only for the commit of the ack.
const (
	// What the wait queue takes in prefetchCommits commits is prefetched: the next claim waits for the commit under way and
	// for its own, and commits vary. More would only keep jobs from the workers of other hosts.
	prefetchCommits = 4
	prefetchLeast   = 10 * time.Millisecond
	prefetchMost    = 120 * time.Millisecond // a job must not reach prefetchAge
	// prefetchJobsMax bounds the jobs that are prefetched for a wait queue.
	prefetchJobsMax = 500
	// prefetchBytesMax bounds their payloads.
	prefetchBytesMax = 4 << 20
	// prefetchTotalMax bounds the payloads of the prefetched jobs of all wait queues of a database. Above it, nothing
	// more is prefetched.
	prefetchTotalMax = 32 << 20
	// prefetchAge is how long a job can stay prefetched before it is released. The design allows a second, but
	// workers of other hosts are possibly idle.
	prefetchAge = 150 * time.Millisecond
	// recordAge is the time after which the hand-out of such a job is recorded, unless the job is settled before.
	recordAge = 300 * time.Millisecond
	// prefetchCheck is how often the prefetcher checks for work while there are prefetched jobs.
	prefetchCheck = 50 * time.Millisecond

	paceWindow = 10 * time.Millisecond
	paceIdle   = time.Second // a wait queue without a claim for that long forgets its pace
)

// prefetch holds the prefetched jobs of one wait queue. dispatcher.mu guards it.
type prefetch struct {
	jobs     []backends.Job  // in the order of claims
	since    []time.Duration // when each of them was claimed
	asked    []time.Duration // claimGroup.asked of each
	bytes    int64
	pace     pace
	inCommit bool // in the commit under way
}

// take takes the first n jobs. They share the memory of the others, which no later job overwrites.
func (a *prefetch) take(n int) []backends.Job {
	jobs := a.jobs[:n:n]
	a.jobs, a.since, a.asked = a.jobs[n:], a.since[n:], a.asked[n:]
	if len(a.jobs) == 0 {
		a.jobs, a.since, a.asked = nil, nil, nil
	}
	for i := range jobs {
		a.bytes -= int64(len(jobs[i].Payload))
	}
	return jobs
}

// fitting returns how many jobs, of at most n, fit into an answer. One always does.
func (a *prefetch) fitting(n int, most int64) int {
	n = min(n, len(a.jobs))
	for i := range n {
		if most -= int64(len(a.jobs[i].Payload)); most < 0 {
			return max(i, 1)
		}
	}
	return n
}

// missing returns how many jobs to prefetch now if the queues have so many. commit is the time of a commit that claims.
func (a *prefetch) missing(now, commit time.Duration) int {
	if a.inCommit || a.bytes >= prefetchBytesMax/2 {
		return 0
	}
	ahead := max(prefetchLeast, min(prefetchCommits*commit, prefetchMost))
	target := min(int(a.pace.perSecond(now, commit)*ahead.Seconds()), prefetchJobsMax)
	if missing := target - len(a.jobs); missing > target/2 {
		return missing
	}
	return 0
}

// wantsPrefetch returns how many slots of a claim group are for prefetch: no more than the jobs that the wait queue can
// expect besides those of its claims. b.mu is held.
func (b *dispatcher) wantsPrefetch(wq *waitQueue, room int) int {
	if !b.canPrefetch || wq.noPrefetch || b.stopped != nil || !b.mayPrefetch() {
		return 0
	}
	return max(0, min(wq.prefetch.missing(b.clock(), b.claimTime), wq.expected, room))
}

// inUse reports whether a wait queue without claims must be kept, for its jobs or to learn its pace. b.mu is held.
func (b *dispatcher) inUse(wq *waitQueue) bool {
	a := &wq.prefetch
	return a.inCommit || len(a.jobs) > 0 || b.canPrefetch && !wq.noPrefetch && a.pace.moves(b.clock(), b.claimTime)
}

// noteClaimTime records how long a commit that claims took, from the choice of its claims.
func (b *dispatcher) noteClaimTime(took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claimTime = max(took, b.claimTime-b.claimTime/8)
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

func (p *pace) perSecond(now, commit time.Duration) float64 {
	p.roll(now, commit)
	last := p.rates
	slices.Sort(last[:])
	return last[len(last)-2]
}

// fromPrefetch takes prefetched jobs for the claim. It returns none for a claim with a timed lease, or of a client
// that reads too slowly. It also returns when the first one's commit began. b.mu is held.
func (b *dispatcher) fromPrefetch(wq *waitQueue, w *ClaimRequest) (jobs []backends.Job, asked time.Duration) {
	a := &wq.prefetch
	if len(a.jobs) == 0 || w.Template.Lease > 0 || w.Session.Overloaded() {
		return nil, 0
	}
	if host := b.identity(); host == 0 || host != a.jobs[0].Token.Host || b.stalls.since(a.asked[0]) {
		return nil, 0 // the prefetcher releases them
	}
	n, _, _ := w.reserve(a.fitting(w.Slots, b.maxBytes()))
	if n == 0 {
		return nil, 0
	}
	before := a.bytes
	asked = a.asked[0]
	jobs = a.take(n)
	b.countPrefetched(a.bytes - before)
	a.pace.add(n, b.clock(), b.claimTime)
	return jobs, asked
}

// takePrefetchedOfOthers takes prefetched jobs of the claim's queues that it cannot get: another wait queue has
// them, or its lease is timed. Otherwise it would find the queue empty because of this sidecar's own prefetch.
// b.mu is held.
func (b *dispatcher) takePrefetchedOfOthers(w *ClaimRequest) (out []backends.Job) {
	for _, q := range w.queue.queues {
		for wq := range b.byQueue[q] {
			if len(wq.prefetch.jobs) > 0 && (wq != w.queue || w.Template.Lease > 0) {
				out = append(out, b.drainPrefetch(wq, 0)...)
				wq.prefetch.pace = pace{since: b.clock()}
			}
		}
	}
	return out
}

// prefetchJobs keeps jobs for the wait queue after it has served the claims that arrived since. It returns those
// that must go back. b.mu is held.
func (b *dispatcher) prefetchJobs(wq *waitQueue, jobs []backends.Job, asked time.Duration) (back []backends.Job) {
	if len(jobs) == 0 {
		return nil
	}
	if b.stopped != nil {
		b.markReturning(jobs)
		return jobs
	}
	now, before := b.clock(), wq.prefetch.bytes
	for i := range jobs {
		wq.prefetch.since, wq.prefetch.asked = append(wq.prefetch.since, now), append(wq.prefetch.asked, asked)
		wq.prefetch.bytes += int64(len(jobs[i].Payload))
	}
	if wq.prefetch.jobs == nil {
		wq.prefetch.jobs = jobs
	} else {
		wq.prefetch.jobs = append(wq.prefetch.jobs, jobs...)
	}
	b.countPrefetched(wq.prefetch.bytes - before)
	for w := range wq.requests {
		if len(wq.prefetch.jobs) == 0 {
			break
		}
		if w.inCommit {
			continue
		}
		if got, asked := b.fromPrefetch(wq, w); len(got) > 0 {
			b.remove(w)
			w.Session.AddClaimed(got)
			w.end(Answer{Jobs: got, asked: asked, prefetched: true})
		}
	}
	if b.queues[wq.key] != wq { // the wait queue was dropped since then, and no claim would find the jobs in it
		return b.drainPrefetch(wq, 0)
	}
	b.attend(wq)
	return nil
}

// drainPrefetch takes the jobs prefetched before limit (0: all). b.mu is held.
func (b *dispatcher) drainPrefetch(wq *waitQueue, limit time.Duration) (out []backends.Job) {
	a := &wq.prefetch
	n, before := 0, a.bytes
	for n < len(a.jobs) && (limit == 0 || a.since[n] < limit) {
		n++
	}
	out = a.take(n)
	b.countPrefetched(a.bytes - before)
	b.markReturning(out)
	return out
}

// markReturning counts jobs that go back to the database. b.mu is held.
func (b *dispatcher) markReturning(jobs []backends.Job) {
	for i := range jobs {
		b.returning[jobs[i].Queue]++
	}
}

// isReturning reports whether a job of one of the queues is on its way back. b.mu is held.
func (b *dispatcher) isReturning(queues []string) bool {
	return slices.ContainsFunc(queues, func(q string) bool { return b.returning[q] > 0 })
}

// returned reports that jobs of these queues are back. Claims that found none are included in the next commit.
func (b *dispatcher) returned(queues []string) {
	b.mu.Lock()
	for _, q := range queues {
		if b.returning[q]--; b.returning[q] <= 0 {
			delete(b.returning, q)
		}
		for wq := range b.byQueue[q] {
			wq.retryDeferred()
		}
	}
	b.mu.Unlock()
	b.notify(queues, 1)
}

// takePrefetched takes the jobs prefetched before limit (0: all) of all wait queues, and drops the idle ones. It also takes
// jobs that waited long enough to be alone. left is true if some wait queues have jobs or are in use, or jobs wait.
func (b *dispatcher) takePrefetched(limit time.Duration) (out []backends.Job, left bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock()
	out = b.drainAlone(func(k *keptJob) bool { return limit == 0 || k.old(now) })
	left = len(b.alone) > 0
	for wq := range b.attended {
		back := b.drainPrefetch(wq, limit)
		if len(back) > 0 {
			out = append(out, back...)
			wq.prefetch.pace = pace{since: now} // no claim used the jobs: start to measure again
		}
		if wq.len() > 0 { // a client that reads too slowly leaves its jobs here
			if len(wq.prefetch.jobs) > 0 {
				left = true
			} else {
				delete(b.attended, wq)
			}
			continue
		}
		if b.inUse(wq) {
			left = true
		} else {
			b.drop(wq)
		}
	}
	return out, left
}

// prefetcher releases jobs that were prefetched and not claimed in time, and records the hand-outs of the others.
type prefetcher struct {
	dispatcher *dispatcher
	leases     *lease.Table
	committer  *committer
	poke       chan struct{} // capacity 1: one pending wake-up is enough
}

func (a *prefetcher) wake() {
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// run works until ctx is done, then finishes. It sleeps while nothing is prefetched.
func (a *prefetcher) run(ctx context.Context) {
	tick := time.NewTicker(prefetchCheck)
	defer tick.Stop()
	for {
		select {
		case <-a.poke:
		case <-ctx.Done():
			a.finish()
			return
		}
		for left := true; left; {
			select {
			case <-tick.C:
				left = a.attend()
			case <-ctx.Done():
				a.finish()
				return
			}
		}
	}
}

// finish releases the prefetched jobs and records the remaining hand-outs. An attempt counts at delivery, and this
// identity settles nothing any more.
func (a *prefetcher) finish() {
	a.returnOlder(0)
	for recorded := 1; recorded > 0; {
		recorded, _ = a.record(0)
	}
}

func (a *prefetcher) attend() (left bool) {
	now := a.dispatcher.clock()
	limit := now - prefetchAge
	if a.dispatcher.identity() == 0 {
		limit = 0 // the heartbeat is late: nothing is handed out, so nothing is kept
	}
	left = a.returnOlder(limit)
	_, more := a.record(recordAge)
	return left || more
}

// record records the hand-outs that are at least that old. It returns how many, and whether there are more.
func (a *prefetcher) record(age time.Duration) (recorded int, more bool) {
	handed, more := a.leases.UnrecordedHandOuts(a.dispatcher.clock(), age, batchJobs)
	if len(handed) > 0 {
		// No client waits for this write. A lost hand-out was settled before.
		a.committer.pushFree(&PendingWrite{write: backends.Deliver{Deliveries: handed}})
	}
	return len(handed), more
}

func (a *prefetcher) returnOlder(limit time.Duration) (left bool) {
	jobs, left := a.dispatcher.takePrefetched(limit)
	a.returnJobs(jobs)
	return left
}

// returnJobs releases prefetched jobs.
func (a *prefetcher) returnJobs(jobs []backends.Job) {
	for len(jobs) > 0 { // by host, because the identity can change between two claims
		host := jobs[0].Token.Host
		n := 0
		for n < len(jobs) && jobs[n].Token.Host == host {
			n++
		}
		a.committer.returnJobs(host, jobs[:n])
		jobs = jobs[n:]
	}
}
