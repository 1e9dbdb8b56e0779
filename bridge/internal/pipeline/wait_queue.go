package pipeline

import "container/list"

// waitQueue holds the waiting claims for the same queues in the same order, first come first served. dispatcher.mu
// guards it.
type waitQueue struct {
	key        string
	queues     []string
	fresh      list.List // of *ClaimRequest: no commit has included them yet
	idle       list.List // of those for which the database had no job
	held       list.List // of those that do not wait: the database had no job, but one is on its way back to it
	generation uint64    // counts the notifications
	expected   int       // about how many jobs the idle claims can expect; 0: none
	scheduled  bool      // it is in dispatcher.due
	prefetch   prefetch
	noPrefetch bool // nothing is prefetched
	large      bool // its next job exceeds quota.MinClaim
}

// someJobs is how many jobs a notification stands for if it does not contain a number.
const someJobs = 16

func (ln *waitQueue) len() int { return ln.idle.Len() + ln.fresh.Len() + ln.held.Len() }

// requests iterates over all claims. The loop can remove the current one.
func (ln *waitQueue) requests(yield func(*ClaimRequest) bool) {
	for _, all := range []*list.List{&ln.idle, &ln.held, &ln.fresh} {
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
func (ln *waitQueue) moveTo(w *ClaimRequest, to *list.List) {
	if w.in != to {
		w.in.Remove(w.at)
		w.in, w.at = to, to.PushBack(w)
	}
}

// noteEmpty records that the database had no job for the claim.
func (ln *waitQueue) noteEmpty(w *ClaimRequest) {
	if w.queue != nil {
		ln.moveTo(w, &ln.idle)
	}
}

// releaseHeld includes the held claims in the next commit again.
func (ln *waitQueue) releaseHeld() {
	for at := ln.held.Front(); at != nil; at = ln.held.Front() {
		ln.moveTo(at.Value.(*ClaimRequest), &ln.fresh)
	}
}

// noteResult records the result of a claim group. If dry is true, the database had no more jobs than it returned:
// idle claims wait for the next notification. Otherwise the next commit claims for twice as many claims. So the cost
// depends on the number of jobs and not on the number of waiting claims.
func (ln *waitQueue) noteResult(a claimGroup, dry bool) {
	switch {
	case !dry:
		ln.expected = min(max(ln.expected, 2*len(a.slots)), maxSlots)
	case ln.generation == a.generation:
		ln.expected = 0
	}
}

// attend adds the wait queue to those that the prefetcher checks. b.mu is held.
func (b *dispatcher) attend(ln *waitQueue) {
	b.attended[ln] = struct{}{}
	b.wakePrefetcher()
}

// schedule includes the wait queue in the next commit. b.mu is held.
func (b *dispatcher) schedule(ln *waitQueue) {
	if !ln.scheduled {
		ln.scheduled = true
		b.due = append(b.due, ln)
	}
}

// needsClaim reports whether the next commit has something to claim for the wait queue. b.mu is held.
func (b *dispatcher) needsClaim(ln *waitQueue) bool {
	return ln.fresh.Len() > 0 || ln.expected > 0 && ln.idle.Len() > 0 || b.wantsPrefetch(ln, maxSlots) > 0
}

// cleanUp drops a wait queue that is no longer used, and schedules one that needs a claim. b.mu is held.
func (b *dispatcher) cleanUp(ln *waitQueue) {
	if b.queues[ln.key] != ln {
		return
	}
	if ln.len() == 0 {
		ln.expected = 0
		if !b.inUse(ln) {
			b.drop(ln)
			return
		}
		b.attend(ln)
	}
	if b.needsClaim(ln) {
		b.schedule(ln)
	}
}
