package pipeline

import "container/list"

// waitQueue holds the waiting claims for the same queues in the same order, first come first served. dispatcher.mu
// guards it.
type waitQueue struct {
	key        string
	queues     []string
	fresh      list.List     // of *ClaimRequest: no commit has included them yet
	idle       list.List     // of those for which the database had no job
	deferred   list.List     // of those that do not wait: the database had no job, but one is on its way back to it
	generation uint64        // counts the notifications
	expected   int           // about how many jobs idle claims and prefetch can expect; 0: none
	due        *list.Element // of dispatcher.due; nil: it is not in there
	prefetch   prefetch
	noPrefetch bool // nothing is prefetched
	large      bool // its next job exceeds quota.MinClaim
	beside     bool // a commit beside the others claims for it; see claimBeside
}

// someJobs is how many jobs a notification stands for if it does not contain a number.
const someJobs = 16

func (wq *waitQueue) len() int { return wq.idle.Len() + wq.fresh.Len() + wq.deferred.Len() }

// requests iterates over all claims. The loop can remove the current one.
func (wq *waitQueue) requests(yield func(*ClaimRequest) bool) {
	for _, all := range []*list.List{&wq.idle, &wq.deferred, &wq.fresh} {
		for at := all.Front(); at != nil; {
			next := at.Next()
			if !yield(at.Value.(*ClaimRequest)) {
				return
			}
			at = next
		}
	}
}

// moveTo moves the claim to another of the wait queue's lists.
func (wq *waitQueue) moveTo(w *ClaimRequest, to *list.List) {
	if w.in != to {
		w.in.Remove(w.at)
		w.in, w.at = to, to.PushBack(w)
	}
}

// noteEmpty records that the database had no job for the claim.
func (wq *waitQueue) noteEmpty(w *ClaimRequest) {
	if w.queue != nil {
		wq.moveTo(w, &wq.idle)
	}
}

// retryDeferred includes the held claims in the next commit again.
func (wq *waitQueue) retryDeferred() {
	for at := wq.deferred.Front(); at != nil; at = wq.deferred.Front() {
		wq.moveTo(at.Value.(*ClaimRequest), &wq.fresh)
	}
}

// noteResult records the result of a claim group. If dry is true, the database had no more jobs than it returned:
// idle claims and prefetch wait for the next notification. Otherwise the next commit has up to twice as many slots for
// them. So the cost depends on the number of jobs, not on the number of waiting claims or on the rate of earlier jobs.
func (wq *waitQueue) noteResult(a claimGroup, dry bool) {
	switch {
	case !dry:
		wq.expected = min(max(wq.expected, 2*len(a.slots)), maxSlots)
	case wq.generation == a.generation:
		wq.expected = 0
	}
}

// attend adds the wait queue to those that the prefetcher checks. b.mu is held.
func (b *dispatcher) attend(wq *waitQueue) {
	b.attended[wq] = struct{}{}
	b.wakePrefetcher()
}

// schedule includes the wait queue in the next commit. b.mu is held.
func (b *dispatcher) schedule(wq *waitQueue) {
	if wq.due == nil {
		wq.due = b.due.PushBack(wq)
	}
}

// unschedule ends schedule. b.mu is held.
func (b *dispatcher) unschedule(wq *waitQueue) {
	if wq.due != nil {
		b.due.Remove(wq.due)
		wq.due = nil
	}
}

// needsClaim reports whether the next commit has something to claim for the wait queue. b.mu is held.
func (b *dispatcher) needsClaim(wq *waitQueue) bool {
	return !wq.beside && (wq.fresh.Len() > 0 || wq.expected > 0 && wq.idle.Len() > 0 || b.wantsPrefetch(wq, maxSlots) > 0)
}

// cleanUp drops a wait queue that is no longer used, and schedules one that needs a claim. b.mu is held.
func (b *dispatcher) cleanUp(wq *waitQueue) {
	if b.queues[wq.key] != wq {
		return
	}
	if wq.len() == 0 {
		if !b.inUse(wq) {
			b.drop(wq)
			return
		}
		b.attend(wq)
	}
	if b.needsClaim(wq) {
		b.schedule(wq)
	}
}
