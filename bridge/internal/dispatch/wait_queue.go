package dispatch

import "container/list"

// waitQueue holds the waiting claims for the same queues in the same order, first come first served. If the queues take turns,
// it holds those for the same queues in any order.
type waitQueue struct {
	key        string
	queues     []string
	fresh      list.List     // of *Request: no commit has included them yet
	idle       list.List     // of those for which the database had no job
	deferred   list.List     // of those that do not wait: the database had no job, but one is on its way back to it; or see holdForOthers, comesBack
	generation uint64        // counts the notifications
	changes    uint64        // counts the admissions in its queues that are over, and how often their limits possibly let jobs start again
	expected   int           // about how many jobs idle claims and prefetch can expect; 0: none
	due        *list.Element // of dueIn; nil: no commit has to include it
	dueIn      *list.List    // matcher.due or ownDue
	prefetch   prefetch
	rotation   *rotation // nil: strict order
	noPrefetch bool      // nothing is prefetched
	ownCommit  bool      // its claims have commits of their own, when they were last gathered
	committing bool      // a commit of its own is under way
	large      bool      // its next job exceeds quota.MinClaim
}

// someJobs is how many jobs a notification stands for if it does not contain a number.
const someJobs = 16

func (w *waitQueue) len() int { return w.idle.Len() + w.fresh.Len() + w.deferred.Len() }

// requests iterates over all claims. The loop can remove the current one.
func (w *waitQueue) requests(yield func(*Request) bool) {
	for _, all := range []*list.List{&w.idle, &w.deferred, &w.fresh} {
		for at := all.Front(); at != nil; {
			next := at.Next()
			if !yield(at.Value.(*Request)) {
				return
			}
			at = next
		}
	}
}

// moveTo moves the claim to another of the wait queue's lists.
func (w *waitQueue) moveTo(r *Request, to *list.List) {
	if r.in != to {
		r.in.Remove(r.at)
		r.in, r.at = to, to.PushBack(r)
	}
}

// noteEmpty records that the database had no job for the claim.
func (w *waitQueue) noteEmpty(r *Request) {
	if r.queue != nil {
		w.moveTo(r, &w.idle)
	}
}

// noteResult records the result of a claim group. If dry is true, the database had no more jobs than it returned:
// idle claims and prefetch wait for the next notification. Otherwise the next commit has up to twice as many slots for
// them. So the cost depends on the number of jobs, not on the number of waiting claims or on the rate of earlier jobs.
func (w *waitQueue) noteResult(g Group, dry bool) {
	switch {
	case !dry:
		w.expected = min(max(w.expected, 2*len(g.Slots)), maxSlots)
	case w.generation == g.generation:
		w.expected = 0
	}
}

// attend adds the wait queue to those that the prefetcher checks.
func (m *matcher) attend(wq *waitQueue) {
	m.attended[wq] = struct{}{}
	m.WakePrefetcher()
}

// schedule includes the wait queue in the next commit of its kind. While a commit of its own is under way, endOwn does.
func (m *matcher) schedule(wq *waitQueue) {
	if wq.due != nil || wq.committing {
		return
	}
	if wq.dueIn = &m.due; wq.ownCommit {
		wq.dueIn = &m.ownDue
	}
	wq.due = wq.dueIn.PushBack(wq)
}

// retryDeferred includes the held claims in the next commit again, also if the limits of their queues let no job start. It reports
// whether there were some.
func (m *matcher) retryDeferred(wq *waitQueue) (held bool) {
	for at := wq.deferred.Front(); at != nil; at = wq.deferred.Front() {
		wq.moveTo(at.Value.(*Request), &wq.fresh)
		held = true
	}
	if held {
		m.schedule(wq)
	}
	return held
}

// unschedule ends schedule.
func (m *matcher) unschedule(wq *waitQueue) {
	if wq.due != nil {
		wq.dueIn.Remove(wq.due)
		wq.due = nil
	}
}

// needsClaim reports whether the next commit has something to claim for the wait queue.
func (m *matcher) needsClaim(wq *waitQueue) bool {
	return wq.fresh.Len() > 0 || wq.expected > 0 && wq.idle.Len() > 0 || m.wantsMore(wq)
}

// wantsMore reports whether the next commit has something to prefetch for the wait queue.
func (m *matcher) wantsMore(wq *waitQueue) bool {
	return m.wantsPrefetch(wq, maxSlots) > 0 || len(m.overlooked(wq)) > 0
}

// cleanUp drops a wait queue that is no longer used, and schedules one that needs a claim.
func (m *matcher) cleanUp(wq *waitQueue) {
	if m.queues[wq.key] != wq {
		return
	}
	if wq.len() == 0 {
		if !m.inUse(wq) {
			m.drop(wq)
			return
		}
		m.attend(wq)
	}
	if m.needsClaim(wq) {
		m.schedule(wq)
	}
}
