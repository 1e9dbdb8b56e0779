package pipeline

import "container/list"

// line is the waiters for the same queues in the same order, first come first served. The
// broker's mu guards it.
type waitQueue struct {
	key        string
	queues     []string
	fresh      list.List // of *waiter that were not asked for yet
	idle       list.List // of those that were, in vain
	held       list.List // of those that don't wait, and were, while a job was on its way back
	generation uint64
	expected   int  // about how many jobs there may be for the idle ones; 0: none
	scheduled  bool // it is in broker.due
	prefetch   prefetch
	noPrefetch bool // nothing is claimed ahead
	large      bool // its next job takes more than a line is asked for where there are many
}

// someJobs is how many jobs a hint stands for that does not say how many there are.
const someJobs = 16

func (ln *waitQueue) len() int { return ln.idle.Len() + ln.fresh.Len() + ln.held.Len() }

// waiters are all of them. The loop may remove the one that it has.
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

// put moves the waiter to another of the line's lists.
func (ln *waitQueue) moveTo(w *ClaimRequest, to *list.List) {
	if w.in != to {
		w.in.Remove(w.at)
		w.in, w.at = to, to.PushBack(w)
	}
}

// look notes that the database had nothing for the waiter.
func (ln *waitQueue) noteEmpty(w *ClaimRequest) {
	if w.queue != nil {
		ln.moveTo(w, &ln.idle)
	}
}

// again has those who stayed be asked for once more.
func (ln *waitQueue) releaseHeld() {
	for at := ln.held.Front(); at != nil; at = ln.held.Front() {
		ln.moveTo(at.Value.(*ClaimRequest), &ln.fresh)
	}
}

// asked follows from an ask that has ended. dry: the database had no more than it gave, so that
// nobody who waits need be asked for before the next hint. Where it gave all that was asked for,
// twice as many are asked for next, so that the cost is that of the jobs, not of the waiters.
func (ln *waitQueue) noteResult(a claimGroup, dry bool) {
	switch {
	case !dry:
		ln.expected = min(max(ln.expected, 2*len(a.slots)), maxSlots)
	case ln.generation == a.generation:
		ln.expected = 0
	}
}

// attend has the attendant look after the line. b.mu is held.
func (b *dispatcher) attend(ln *waitQueue) {
	b.attended[ln] = struct{}{}
	b.wakePrefetcher()
}

// push has the line be asked for with the next commit. b.mu is held.
func (b *dispatcher) schedule(ln *waitQueue) {
	if !ln.scheduled {
		ln.scheduled = true
		b.due = append(b.due, ln)
	}
}

// needs reports whether there is something to ask for. b.mu is held.
func (b *dispatcher) needsClaim(ln *waitQueue) bool {
	return ln.fresh.Len() > 0 || ln.expected > 0 && ln.idle.Len() > 0 || b.wantsPrefetch(ln, maxSlots) > 0
}

// tidy drops a line that is not used any more, or has it be asked for if it needs that. b.mu is held.
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
