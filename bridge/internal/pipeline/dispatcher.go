package pipeline

import (
	"cmp"
	"container/list"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// maxSlots bounds one claim statement. It is far above what the workers of one host claim at a time, and small
// enough for any engine.
const maxSlots = 1000

// dispatcher holds the claims of one database that have no answer yet, and decides which of them the next commit
// includes.
//
// A commit includes each claim once when it arrives, so that an empty answer always comes from the database. It
// includes the claim again after a notification, in turn. A notification reports that a queue possibly has ready
// jobs, and about how many.
type dispatcher struct {
	wake           func()                   // wakes the committer
	identity       func() backends.Identity // 0: the heartbeat is late
	stalls         *stalls
	began          time.Time               // where clock begins
	canPrefetch    bool                    // the backend supports prefetch
	noPrefetch     func(queue string) bool // reports whether jobs of the queue must not be prefetched; nil: of none
	slow           func(queue string) bool // reports whether claims of the queue must not delay others; nil: those of none
	wakePrefetcher func()
	memory         *quota.Memory // nil: prefetched jobs are not counted
	maxBytes       func() int64  // payload bytes of an answer
	answers        channels[Answer]

	mu            sync.Mutex
	queues        map[string]*waitQueue
	byQueue       map[string]map[*waitQueue]struct{}
	returning     map[string]int          // jobs on their way back to the database, by queue
	due           list.List               // of *waitQueue: to include, in turn, so that no wait queue starves when slots are short
	attended      map[*waitQueue]struct{} // those with prefetched jobs, and those to drop soon; for the prefetcher
	prefetchBytes prefetchedBytes
	claimTime     time.Duration // of a commit that claims: the longest of the last ones
	alone         []keptJob     // oldest first
	beside        int           // wait queues for which a commit beside the others claims
	stopped       error         // not nil: every claim is answered with it (draining)
}

// ErrMoved ends the wait of a claim whose queues a reload moved to another database.
var ErrMoved = errors.New("a reload moved the queue")

func newDispatcher(wake func()) *dispatcher {
	return &dispatcher{wake: wake, began: time.Now(), queues: make(map[string]*waitQueue), byQueue: make(map[string]map[*waitQueue]struct{}), attended: make(map[*waitQueue]struct{}), returning: make(map[string]int)}
}

// clock is the clock of the pace and of the age of prefetched jobs. Unlike that of the heartbeat it stands still while the
// machine is suspended, and is cheap.
func (b *dispatcher) clock() time.Duration { return time.Since(b.began) }

// add answers a claim with prefetched jobs. If there are none it queues the claim, and answered is false.
func (b *dispatcher) add(w *ClaimRequest, queues []string) (a Answer, answered bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped != nil {
		return Answer{Err: b.stopped}, true
	}
	if a, answered = b.fromAlone(w, queues); answered {
		return a, true
	}
	wq := b.waitQueueFor(queues)
	if jobs, asked := b.fromPrefetch(wq, w); len(jobs) > 0 {
		w.Session.AddClaimed(jobs)
		if b.wantsPrefetch(wq, maxSlots) > 0 {
			b.schedule(wq)
			b.wake()
		}
		return Answer{Jobs: jobs, asked: asked, prefetched: true}, true
	}
	w.answer = b.answers.get()
	w.queue, w.Queues = wq, wq.queues
	w.in, w.at = &wq.fresh, wq.fresh.PushBack(w)
	b.schedule(wq)
	b.wake()
	return Answer{}, false
}

// waitQueueFor finds or creates the wait queue for the queues. It does not keep the slice. b.mu is held.
func (b *dispatcher) waitQueueFor(queues []string) *waitQueue {
	key := strings.Join(queues, ",") // no queue name has a comma
	wq := b.queues[key]
	if wq != nil {
		return wq
	}
	queues = once(queues)
	wq = &waitQueue{key: key, queues: queues, noPrefetch: b.isDirect(queues)}
	b.queues[key] = wq
	for _, q := range queues {
		set := b.byQueue[q]
		if set == nil {
			set = make(map[*waitQueue]struct{})
			b.byQueue[q] = set
		}
		set[wq] = struct{}{}
	}
	return wq
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

// leave requests the claim's answer. It comes immediately, or with the commit under way and possibly with jobs.
func (b *dispatcher) leave(w *ClaimRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case w.queue == nil: // answered already
	case w.inCommit:
		w.leaving = true
	default:
		b.remove(w)
		w.end(Answer{Err: w.lastErr})
	}
}

// remove takes the claim out of its wait queue. b.mu is held.
func (b *dispatcher) remove(w *ClaimRequest) {
	wq := w.queue
	w.queue = nil
	w.in.Remove(w.at)
	if wq.len() == 0 && !wq.prefetch.inCommit { // otherwise the end of the claim group drops it
		b.cleanUp(wq)
	}
}

// drop forgets a wait queue that no session waits in. b.mu is held.
func (b *dispatcher) drop(wq *waitQueue) {
	b.unschedule(wq)
	delete(b.queues, wq.key)
	delete(b.attended, wq)
	for _, q := range wq.queues {
		set := b.byQueue[q]
		delete(set, wq)
		if len(set) == 0 {
			delete(b.byQueue, q)
		}
	}
}

// notify reports that the queues possibly have about that many ready jobs together. It wakes the committer if a claim
// waits for one of them.
func (b *dispatcher) notify(queues []string, jobs int) {
	if b.markReady(queues, jobs) {
		b.wake()
	}
}

// NotifyReady is notify for an unknown number of jobs.
func (b *dispatcher) NotifyReady(queues []string) { b.notify(queues, someJobs*len(queues)) }

// markReady divides the jobs equally between the queues. If a queue has more, its claims find them a commit later (see
// noteResult).
func (b *dispatcher) markReady(queues []string, jobs int) (wanted bool) {
	if len(queues) == 0 {
		return false
	}
	each := (jobs + len(queues) - 1) / len(queues)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range queues {
		for wq := range b.byQueue[q] {
			wq.generation++
			wq.expected = min(wq.expected+max(each, 1), maxSlots)
			wanted = wanted || wq.len() > 0
			if b.needsClaim(wq) {
				b.schedule(wq)
			}
		}
	}
	return wanted
}

// Waiting lists the queues that a claim waits for.
func (b *dispatcher) Waiting() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]string, 0, len(b.byQueue))
	for q, queues := range b.byQueue {
		for wq := range queues {
			if wq.len() > 0 {
				out = append(out, q)
				break
			}
		}
	}
	return out
}

// deliver ends a claim group with the jobs that the database returned: jobs for its claims first, then those
// prefetched. It returns the jobs to release.
func (b *dispatcher) deliver(a claimGroup, res backends.ClaimResult) (back []backends.Job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	jobs := res.Jobs
	again := a.learn(res) && b.stopped == nil
	var apart []backends.Job // that must be alone
	empty := a.requests[:0]
	for _, w := range a.requests {
		w.inCommit = false
		w.lastErr = nil
		asked := w.Slots
		if w.Template.Lease == 0 {
			asked = w.Reserved
		}
		n := min(asked, len(jobs))
		own := jobs[:n:n]
		jobs = jobs[n:]
		if w.Template.Lease == 0 {
			own = b.ownJobs(w, own, &apart)
		}
		if len(own) > 0 {
			b.remove(w)
			w.end(b.answer(w, own, a.asked))
			if w.Template.Lease == 0 { // claims with a timed lease get no prefetched jobs
				a.queue.prefetch.pace.add(len(own), b.clock(), b.claimTime)
			}
			continue
		}
		w.unanswered()
		empty = append(empty, w)
	}
	prefetched := withoutAlone(jobs, &apart)
	if back = b.keepAlone(apart, a.asked, empty); len(back) > 0 && len(prefetched) < len(jobs) {
		a.queue.prefetch.pace = pace{since: b.clock()} // otherwise the next commit would prefetch them again
	}
	for _, w := range empty {
		if w.queue == nil {
			continue // it got a job that must be alone
		}
		if !res.More {
			a.queue.noteEmpty(w)
			if !w.leaving {
				back = append(back, b.takePrefetchedOfOthers(w)...)
			}
			if w.Once && !w.leaving && b.stopped == nil && b.isReturning(w.Queues) {
				a.queue.moveTo(w, &a.queue.deferred) // the commit did not see a job that is on its way back
				continue
			}
		}
		if w.leaving && (!again || w.moved != nil) || w.Once && !res.More {
			b.remove(w)
			w.end(Answer{Err: cmp.Or(b.stopped, w.moved)})
		}
	}
	a.queue.noteResult(a, len(res.Jobs) < len(a.slots) && !res.More)
	a.queue.prefetch.inCommit = false
	back = append(back, b.prefetchJobs(a.queue, prefetched, a.asked)...)
	b.cleanUp(a.queue)
	return back
}

// fail ends a claim group that the database did not answer. Claims that do not wait get the error. The others
// continue to wait, and get the error only if their wait ends before a later commit succeeds.
func (b *dispatcher) fail(a claimGroup, err error) { b.failed(a, err, false) }

// failAlone is fail for a claim group that got its own error while the rest of the commit succeeded. Its waiting
// claims are included again after the next notification.
func (b *dispatcher) failAlone(a claimGroup, err error) { b.failed(a, err, true) }

func (b *dispatcher) failed(a claimGroup, err error, alone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	guilty := a.guilty(err)
	if alone && guilty == nil {
		a.queue.noteResult(a, true)
	} else {
		a.queue.expected = min(max(a.queue.expected, len(a.slots)), maxSlots) // the next commit includes them again
	}
	a.queue.prefetch.inCommit = false
	defer b.cleanUp(a.queue)
	for _, w := range a.requests {
		w.inCommit = false
		w.unanswered()
		if guilty != nil && !guilty[w] {
			if w.leaving {
				b.remove(w)
				w.end(Answer{Err: cmp.Or(b.stopped, w.moved)})
			}
			continue
		}
		if alone {
			a.queue.noteEmpty(w)
		}
		w.lastErr = err
		mayPass := backends.Retryable(err) || isLocked(err) || errors.Is(err, backends.ErrUnknownOutcome)
		if w.leaving || w.Once || !mayPass {
			b.remove(w)
			w.end(Answer{Err: cmp.Or(w.moved, err)})
		}
	}
}

// guilty returns the claims of the group whose worker's name or lease the database refuses; nil: they aren't the reason of the
// error. The other claims are included again.
func (a *claimGroup) guilty(err error) map[*ClaimRequest]bool {
	slot, ok := errors.AsType[*backends.SlotError](err)
	if !ok {
		return nil
	}
	var all map[*ClaimRequest]bool
	for _, w := range a.requests {
		if w.Template.Worker == slot.Worker && w.Template.Lease == slot.Lease {
			if all == nil {
				all = map[*ClaimRequest]bool{}
			}
			all[w] = true
		}
	}
	return all
}

// failOnce answers the claims that do not wait, or no longer: nothing can be claimed now.
func (b *dispatcher) failOnce(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, wq := range b.queues {
		for w := range wq.requests {
			if w.inCommit {
				continue
			}
			w.lastErr = err
			if w.Once || w.leaving {
				b.remove(w)
				w.end(Answer{Err: err})
			}
		}
	}
}

// stop answers every claim with err, now and later.
func (b *dispatcher) stop(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = err
	for _, wq := range b.queues {
		for w := range wq.requests {
			w.lastErr = err
			if w.inCommit {
				w.leaving = true
				continue
			}
			b.remove(w)
			w.end(Answer{Err: err})
		}
	}
}

// reroute ends waits with ErrMoved: those in wait queues that are not served here any more, and those of sessions
// that are not allowed to claim there any more. It returns the jobs prefetched for the former.
func (b *dispatcher) reroute(served func(queues []string) bool) (back []backends.Job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	back = b.drainAlone(func(k *keptJob) bool { return !served([]string{k.Queue}) })
	for _, wq := range b.queues {
		wq.noPrefetch = b.isDirect(wq.queues)
		stays := served(wq.queues)
		if !stays {
			back = append(back, b.drainPrefetch(wq, 0)...)
		}
		for w := range wq.requests {
			if stays && w.Session.Client.MayClaim(wq.queues) {
				continue
			}
			w.moved = ErrMoved
			if w.inCommit {
				w.leaving = true
				continue
			}
			b.remove(w)
			w.end(Answer{Err: ErrMoved})
		}
	}
	return back
}

func (b *dispatcher) isSlow(queues []string) bool {
	return b.slow != nil && slices.ContainsFunc(queues, b.slow)
}

func (b *dispatcher) isDirect(queues []string) bool {
	return b.noPrefetch != nil && slices.ContainsFunc(queues, b.noPrefetch)
}

// wait returns the claim's answer. If over is closed (the end of the claim's wait, a cancel, a hang-up), it requests it
// early.
func (b *dispatcher) wait(over <-chan struct{}, w *ClaimRequest) Answer {
	var a Answer
	select {
	case a = <-w.answer:
	case <-over:
		b.leave(w)
		a = <-w.answer
	}
	b.answers.put(w.answer)
	return a
}
