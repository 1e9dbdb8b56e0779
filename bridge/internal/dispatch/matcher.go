package dispatch

import (
	"cmp"
	"container/list"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// maxSlots bounds one claim statement. It is far above what the workers of one host claim at a time, and small
// enough for any engine.
const maxSlots = 1000

// matcher decides which waiting claims the next commit includes, and which claims get the jobs that it returns. It is pure:
// it has no lock and no time of its own. A Dispatcher guards it.
type matcher struct {
	Config
	queues        map[string]*waitQueue
	byQueue       map[string]map[*waitQueue]struct{}
	turns         map[string]turns        // of dropped wait queues, by key
	turnsKept     int                     // queues in turns
	returning     map[string]int          // jobs on their way back to the database, by queue
	admitting     map[string]int          // groups in which jobs are being admitted, by queue
	settling      map[string]int          // settles under way that free slots of a cap, by queue
	due           list.List               // of *waitQueue: to include, in turn, so that no wait queue starves when slots are short
	ownDue        list.List               // of those whose claims have commits of their own
	ownCommits    int                     // of ownDue, at present
	attended      map[*waitQueue]struct{} // those with prefetched jobs, and those to drop soon; for the prefetcher
	prefetchBytes prefetchedBytes
	claimTime     time.Duration  // of a commit that claims: the longest of the last ones
	alone         []keptJob      // oldest first
	expired       []backends.Job // prefetched jobs that must not start any more, for the prefetcher
	stopped       error          // not nil: every claim is answered with it (draining)
	answers       sync.Pool      // of chan Answer
}

// ErrAgain ends the wait of a claim that its session has to make again, possibly in another database: a reload moved its queues,
// or its jobs could not be handed out in time.
var ErrAgain = errors.New("claim again")

func newMatcher(c Config) matcher {
	return matcher{
		Config:    c,
		queues:    make(map[string]*waitQueue),
		byQueue:   make(map[string]map[*waitQueue]struct{}),
		turns:     make(map[string]turns),
		returning: make(map[string]int),
		admitting: make(map[string]int),
		settling:  make(map[string]int),
		attended:  make(map[*waitQueue]struct{}),
	}
}

// add answers a claim with prefetched jobs. If there are none it queues the claim, and answered is false.
func (m *matcher) add(r *Request, queues []string) (a Answer, answered bool) {
	if m.stopped != nil {
		return Answer{Err: m.stopped}, true
	}
	if a, answered = m.fromAlone(r, queues); answered {
		return a, true
	}
	wq := m.waitQueueFor(queues, r.Rotate, r.Weights)
	if jobs, asked := m.fromPrefetch(wq, r); len(jobs) > 0 {
		r.Session.AddClaimed(jobs)
		if m.wantsMore(wq) {
			m.schedule(wq)
			m.Wake()
		}
		return Answer{Jobs: jobs, Asked: asked, At: m.Clock(), Unrecorded: true}, true
	}
	if r.answer, _ = m.answers.Get().(chan Answer); r.answer == nil {
		r.answer = make(chan Answer, 1)
	}
	r.queue, r.Queues = wq, wq.queues
	switch {
	case !r.Once && all(wq.queues, m.Closed): // the end of that is announced
		r.in, r.at = &wq.idle, wq.idle.PushBack(r)
	case r.Once && all(wq.queues, m.Full) && m.holdForOthers(r), // it would find no job
		m.comesBack(wq) && r.hold(): // it would find a job that comes later
		r.in, r.at = &wq.deferred, wq.deferred.PushBack(r)
	default:
		r.in, r.at = &wq.fresh, wq.fresh.PushBack(r)
		m.schedule(wq)
		m.Wake()
	}
	return Answer{}, false
}

// waitQueueFor finds or creates the wait queue for the queues. It does not keep the slice.
func (m *matcher) waitQueueFor(queues []string, rotate bool, given map[string]int64) *waitQueue {
	first := queues[0]
	if rotate && len(queues) > 1 {
		queues = inAnyOrder(queues)
	}
	rotate = rotate && len(queues) > 1
	key := strings.Join(queues, ",") // no queue name has a comma
	var weights []int64              // nil: all are equal
	if rotate {
		key = "~" + key // nor begins with this
		if len(given) > 0 {
			weights = weightsOf(queues, given)
		}
		if weights != nil {
			key += fmt.Sprint(weights) // nor has a bracket
		}
	}
	wq := m.queues[key]
	if wq != nil {
		return wq
	}
	queues = once(queues)
	wq = &waitQueue{key: key, queues: queues, noPrefetch: m.isDirect(queues)}
	if rotate {
		wq.rotation = m.newRotation(key, queues, weights, first)
	}
	m.queues[key] = wq
	for _, q := range queues {
		set := m.byQueue[q]
		if set == nil {
			set = make(map[*waitQueue]struct{})
			m.byQueue[q] = set
		}
		set[wq] = struct{}{}
	}
	return wq
}

// inAnyOrder returns the queues in the order of their names, without duplicates.
func inAnyOrder(queues []string) []string {
	for i, q := range queues[1:] {
		if queues[i] >= q {
			return slices.Compact(slices.Sorted(slices.Values(queues)))
		}
	}
	return queues
}

// once removes duplicates and keeps the order.
func once(queues []string) []string {
	seen := make(map[string]struct{}, len(queues))
	var all []string
	for _, q := range queues {
		if _, twice := seen[q]; !twice {
			seen[q] = struct{}{}
			all = append(all, q)
		}
	}
	return all
}

// leave requests the claim's answer early.
func (m *matcher) leave(r *Request) {
	switch {
	case r.queue == nil: // answered already
	case r.inCommit:
		r.leaving = true
	default:
		m.remove(r)
		r.end(Answer{Err: r.lastErr})
	}
}

// remove takes the claim out of its wait queue.
func (m *matcher) remove(r *Request) {
	wq := r.queue
	r.queue = nil
	r.in.Remove(r.at)
	if wq.len() == 0 && !wq.prefetch.inCommit { // otherwise the end of the claim group drops it
		m.cleanUp(wq)
	}
}

// drop forgets a wait queue that no session waits in.
func (m *matcher) drop(wq *waitQueue) {
	m.unschedule(wq)
	m.keepTurn(wq)
	delete(m.queues, wq.key)
	delete(m.attended, wq)
	for _, q := range wq.queues {
		set := m.byQueue[q]
		delete(set, wq)
		if len(set) == 0 {
			delete(m.byQueue, q)
		}
	}
}

// announcement is how queues possibly got ready jobs.
type announcement struct {
	to       audience
	reopened bool // the queues are possibly no longer closed
}

// audience is which wait queues an announcement is for.
type audience int

const (
	everyone audience = iota
	joined            // those whose claims a commit of writes can include
	own               // those whose claims have commits of their own
)

// announce divides the jobs equally between the queues. If a queue has more, its claims find them a commit later (see
// noteResult).
func (m *matcher) announce(queues []string, jobs int, a announcement) (wanted bool) {
	each := (jobs + len(queues) - 1) / len(queues)
	for _, q := range queues {
		if !a.reopened && m.Closed(q) { // the end of that is announced
			continue
		}
		for wq := range m.byQueue[q] {
			if a.to != everyone && m.hasOwnCommit(wq) != (a.to == own) {
				continue
			}
			wq.generation++
			if a.reopened {
				wq.changes++
				wanted = m.retryDeferred(wq) || wanted
			}
			wq.expected = min(wq.expected+max(each, 1), maxSlots)
			if wq.rotation != nil {
				i := wq.rotation.index(q)
				wq.rotation.more[i], wq.rotation.empty[i] = true, false
			}
			wanted = wanted || wq.len() > 0 || len(m.overlooked(wq)) > 0
			if m.needsClaim(wq) {
				m.schedule(wq)
			}
		}
	}
	return wanted
}

// waiting lists the queues that a claim waits for.
func (m *matcher) waiting() []string {
	out := make([]string, 0, len(m.byQueue))
	for q, queues := range m.byQueue {
		for wq := range queues {
			if wq.len() > 0 {
				out = append(out, q)
				break
			}
		}
	}
	return out
}

// deliver gives the jobs to the claims of the group first, and prefetches the others. It returns the jobs to release.
func (m *matcher) deliver(g Group, results []backends.ClaimResult) (back []backends.Job) {
	res, dry, short := g.merge(results)
	jobs := res.Jobs
	again := g.learn(res, short) && m.stopped == nil
	var apart []backends.Job // that must be alone
	empty := g.requests[:0]
	at := 0 // a slot
	for _, r := range g.requests {
		r.inCommit = false
		r.lastErr = nil
		asked := r.Slots
		if r.Template.Lease == 0 {
			asked = r.Reserved
		}
		n := g.take(jobs, at, asked)
		at += asked
		own := jobs[:n:n]
		jobs = jobs[n:]
		if r.Template.Lease == 0 {
			own = m.ownJobs(r, own, &apart)
		}
		if len(own) > 0 {
			g.queue.handOut(own)
			m.remove(r)
			r.end(m.answer(r, own, g.Asked))
			if r.Template.Lease == 0 { // claims with a timed lease get no prefetched jobs
				g.queue.prefetch.pace.add(len(own), m.Clock(), m.claimTime)
			}
			continue
		}
		r.unanswered()
		empty = append(empty, r)
	}
	prefetched := withoutAlone(jobs, &apart)
	if back = m.keepAlone(apart, g.Asked, empty); len(back) > 0 && len(prefetched) < len(jobs) {
		g.queue.prefetch.pace = pace{since: m.Clock()} // otherwise the next commit would prefetch them again
	}
	for _, r := range empty {
		if r.queue == nil {
			continue // it got a job that must be alone
		}
		if !res.More {
			g.queue.noteEmpty(r)
			if !r.leaving {
				back = append(back, m.takePrefetchedOfOthers(r)...)
			}
			if r.Once && !r.leaving && m.stopped == nil {
				if m.isReturning(r.Queues) || m.holdForOthers(r) {
					g.queue.moveTo(r, &g.queue.deferred) // the commit did not see a job that is on its way back, or being admitted
					continue
				}
				if g.changes != g.queue.changes && r.hold() {
					g.queue.moveTo(r, &g.queue.fresh) // an admission or a settle ended during the commit
					continue
				}
			}
		}
		if r.leaving && (!again || r.moved != nil) || r.Once && !res.More {
			m.remove(r)
			r.end(Answer{Err: cmp.Or(m.stopped, r.moved)})
		}
	}
	if g.asksAll() {
		g.queue.noteResult(g, dry)
	}
	g.queue.prefetch.inCommit = false
	back = append(back, m.prefetchJobs(g.queue, prefetched, g.Asked)...)
	m.cleanUp(g.queue)
	return back
}

// fail ends a claim group that has no result. apart is true if only the group failed.
func (m *matcher) fail(g Group, err error, apart bool) {
	guilty := g.guilty(err)
	if !apart { // otherwise the queues wait for a notification
		g.tookNone()
	}
	if apart && guilty == nil {
		g.queue.noteResult(g, true)
	} else {
		g.queue.expected = min(max(g.queue.expected, len(g.Slots)), maxSlots) // the next commit includes them again
	}
	g.queue.prefetch.inCommit = false
	defer m.cleanUp(g.queue)
	for _, r := range g.requests {
		r.inCommit = false
		r.unanswered()
		if guilty != nil && !guilty[r] {
			if r.leaving {
				m.remove(r)
				r.end(Answer{Err: cmp.Or(m.stopped, r.moved)})
			}
			continue
		}
		if apart {
			g.queue.noteEmpty(r)
		}
		r.lastErr = err
		_, locked := errors.AsType[*backends.LockedError](err)
		mayPass := backends.Retryable(err) || locked || errors.Is(err, backends.ErrUnknownOutcome)
		if r.leaving || r.Once || !mayPass {
			m.remove(r)
			r.end(Answer{Err: cmp.Or(r.moved, err)})
		}
	}
}

// guilty returns the claims of the group whose worker's name or lease the database refuses; nil: they aren't the reason of the
// error. The other claims are included again.
func (g *Group) guilty(err error) map[*Request]bool {
	slot, ok := errors.AsType[*backends.SlotError](err)
	if !ok {
		return nil
	}
	var all map[*Request]bool
	for _, r := range g.requests {
		if r.Template.Worker == slot.Worker && r.Template.Lease == slot.Lease {
			if all == nil {
				all = map[*Request]bool{}
			}
			all[r] = true
		}
	}
	return all
}

func (m *matcher) failOnce(err error) {
	for _, wq := range m.queues {
		for r := range wq.requests {
			if r.inCommit {
				continue
			}
			r.lastErr = err
			if r.Once || r.leaving {
				m.remove(r)
				r.end(Answer{Err: err})
			}
		}
	}
}

func (m *matcher) stop(err error) {
	m.stopped = err
	for _, wq := range m.queues {
		for r := range wq.requests {
			r.lastErr = err
			if r.inCommit {
				r.leaving = true
				continue
			}
			m.remove(r)
			r.end(Answer{Err: err})
		}
	}
}

func (m *matcher) reroute(served func(queues []string) bool) (back []backends.Job) {
	back = m.drainAlone(func(k *keptJob) bool { return !served([]string{k.Queue}) })
	for _, wq := range m.queues {
		wq.noPrefetch = m.isDirect(wq.queues)
		stays := served(wq.queues)
		if !stays {
			back = append(back, m.drainPrefetch(wq, 0)...)
		}
		for r := range wq.requests {
			if stays && r.Session.Client.MayClaim(wq.queues) {
				continue
			}
			r.moved = ErrAgain
			if r.inCommit {
				r.leaving = true
				continue
			}
			m.remove(r)
			r.end(Answer{Err: ErrAgain})
		}
	}
	return back
}

func (m *matcher) isDirect(queues []string) bool {
	return slices.ContainsFunc(queues, func(q string) bool { return m.NoPrefetch(q) || m.Gated(q) })
}

// all reports whether is returns true for all queues.
func all(queues []string, is func(queue string) bool) bool {
	return !slices.ContainsFunc(queues, func(q string) bool { return !is(q) })
}

// hasOwnCommit reports whether claims of the wait queue have commits of their own.
func (m *matcher) hasOwnCommit(wq *waitQueue) bool {
	return wq.noPrefetch && slices.ContainsFunc(wq.queues, m.needsOwnCommit)
}

// needsOwnCommit reports whether claims of the queue have commits of their own.
func (m *matcher) needsOwnCommit(queue string) bool { return m.Gated(queue) || m.Slow(queue) }

func (m *matcher) snapshot() (n Snapshot) {
	n.WaitQueues, n.Stopped, n.Prefetched = len(m.queues), m.stopped != nil, m.keptAlone()
	for _, wq := range m.queues {
		n.Claims += wq.len()
		n.Prefetched += len(wq.prefetch.jobs)
		if wq.expected == 0 && !wq.prefetch.inCommit {
			n.IdleClaims += wq.idle.Len()
		}
	}
	return n
}
