package bridge

import "container/list"

// line is the waiters for the same queues in the same order, first come first served. The
// broker's mu guards it.
type line struct {
	key    string
	queues []string
	fresh  list.List // of *waiter that were not asked for yet
	idle   list.List // of those that were, in vain
	stay   list.List // of those that don't wait, and were, while a job was on its way back
	hint   uint64
	wish   int  // about how many jobs there may be for the idle ones; 0: none
	due    bool // it is in broker.due
	ahead  ahead
	direct bool // nothing is claimed ahead
	large  bool // its next job takes more than a line is asked for where there are many
}

// someJobs is how many jobs a hint stands for that does not say how many there are.
const someJobs = 16

func (ln *line) len() int { return ln.idle.Len() + ln.fresh.Len() + ln.stay.Len() }

// waiters are all of them. The loop may remove the one that it has.
func (ln *line) waiters(yield func(*waiter) bool) {
	for _, all := range []*list.List{&ln.idle, &ln.stay, &ln.fresh} {
		for at := all.Front(); at != nil; {
			next := at.Next()
			if !yield(at.Value.(*waiter)) {
				return
			}
			at = next
		}
	}
}

// put moves the waiter to another of the line's lists.
func (ln *line) put(w *waiter, to *list.List) {
	if w.in != to {
		w.in.Remove(w.at)
		w.in, w.at = to, to.PushBack(w)
	}
}

// look notes that the database had nothing for the waiter.
func (ln *line) look(w *waiter) {
	if w.line != nil {
		ln.put(w, &ln.idle)
	}
}

// again has those who stayed be asked for once more.
func (ln *line) again() {
	for at := ln.stay.Front(); at != nil; at = ln.stay.Front() {
		ln.put(at.Value.(*waiter), &ln.fresh)
	}
}

// asked follows from an ask that has ended. dry: the database had no more than it gave, so that
// nobody who waits need be asked for before the next hint. Where it gave all that was asked for,
// twice as many are asked for next, so that the cost is that of the jobs, not of the waiters.
func (ln *line) asked(a ask, dry bool) {
	switch {
	case !dry:
		ln.wish = min(max(ln.wish, 2*len(a.slots)), maxSlots)
	case ln.hint == a.hint:
		ln.wish = 0
	}
}

// attend has the attendant look after the line. b.mu is held.
func (b *broker) attend(ln *line) {
	b.attends[ln] = struct{}{}
	b.buffered()
}

// push has the line be asked for with the next commit. b.mu is held.
func (b *broker) push(ln *line) {
	if !ln.due {
		ln.due = true
		b.due = append(b.due, ln)
	}
}

// needs reports whether there is something to ask for. b.mu is held.
func (b *broker) needs(ln *line) bool {
	return ln.fresh.Len() > 0 || ln.wish > 0 && ln.idle.Len() > 0 || b.wantsAhead(ln, maxSlots) > 0
}

// tidy drops a line that is not used any more, or has it be asked for if it needs that. b.mu is held.
func (b *broker) tidy(ln *line) {
	if b.lines[ln.key] != ln {
		return
	}
	if ln.len() == 0 {
		ln.wish = 0
		if !b.busy(ln) {
			b.drop(ln)
			return
		}
		b.attend(ln)
	}
	if b.needs(ln) {
		b.push(ln)
	}
}
