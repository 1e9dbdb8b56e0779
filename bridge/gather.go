package bridge

import (
	"container/list"

	"github.com/qsidecar/qsidecar/backends"
)

// ask is one line's part of a commit.
type ask struct {
	line    *line
	waiters []*waiter
	hint    uint64
	slots   []backends.Slot
	bytes   int64 // of payload, not even one job may be larger; 0: what fits an answer
}

// gather chooses whom the next commit asks for, at most maxSlots. number gives
// each slot its token's number. What is left of the space is given back.
func (b *broker) gather(host backends.Identity, number func() uint64, mem *space) []ask {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := gathering{b: b, room: maxSlots, slot: func(s backends.Slot) backends.Slot {
		s.Token = backends.Token{Host: host, Number: number()}
		return s
	}}
	due := b.due
	b.due = nil
	for i, ln := range due {
		if g.room <= 0 {
			b.due = append(due[i:len(due):len(due)], b.due...) // they come first next time
			break
		}
		ln.due = false
		if b.lines[ln.key] != ln || !b.needs(ln) {
			continue
		}
		if !mem.take(ln) {
			b.push(ln)
			continue
		}
		if !g.ask(ln) {
			mem.untake(ln)
			b.push(ln) // who waits in it may be asked for when a client has read, or settled
		}
	}
	mem.divide(g.asks)
	for _, w := range g.full {
		b.remove(w)
		w.answer <- answer{err: w.sess.client.tooManyJobs()}
	}
	return g.asks
}

// gathering is what a commit asks for, as far as it is known.
type gathering struct {
	b    *broker
	room int // slots
	slot func(backends.Slot) backends.Slot
	asks []ask
	full []*waiter // who hold too many jobs
}

// ask asks for the line's waiters: for as many of those who are idle as there may be jobs and one
// more, which finds out whether there are more, and for all who are fresh. false: for nobody.
func (g *gathering) ask(ln *line) bool {
	a := ask{line: ln, hint: ln.hint}
	fits := true
	if ln.wish > 0 {
		fits = g.add(&a, &ln.idle, ln.wish+1)
		ln.wish = max(0, ln.wish-len(a.slots))
	}
	if fits {
		g.add(&a, &ln.fresh, maxSlots)
	}
	for range g.b.wantsAhead(ln, g.room) {
		a.slots = append(a.slots, g.slot(backends.Slot{Prefetch: true}))
		g.room--
	}
	if len(a.slots) == 0 {
		return false
	}
	ln.ahead.asking = true
	g.asks = append(g.asks, a)
	return true
}

// add asks for waiters of a list until that brings so many slots. false: there is no room for the
// next one, who comes first next time.
func (g *gathering) add(a *ask, all *list.List, most int) (fits bool) {
	for at := all.Front(); at != nil && most > 0 && g.room > 0; at = at.Next() {
		w := at.Value.(*waiter)
		if w.sess.overloaded() {
			continue
		}
		if w.slots > g.room && len(a.waiters)+len(g.asks) > 0 {
			return false
		}
		n, held := w.take(w.slots)
		if held {
			g.full = append(g.full, w)
		}
		if n == 0 {
			continue
		}
		w.asking = true
		g.room -= n
		most -= n
		a.waiters = append(a.waiters, w)
		for range n {
			a.slots = append(a.slots, g.slot(w.lease))
		}
	}
	return true
}

// take is for how many jobs the database may be asked for the waiter: the places of its
// session's that it took for them, and all for a timed lease. full: it holds too many.
func (w *waiter) take(want int) (n int, full bool) {
	if w.lease.Lease > 0 {
		return want, false
	}
	w.places, full = w.sess.jobs.take(want, w.sess.client.maxJobs())
	return w.places, full
}

// unanswered gives back the places of a waiter whose ask brought nothing.
func (w *waiter) unanswered() {
	w.sess.settleQuota(w.places, 0)
	w.places = 0
}

// gather chooses the claims of the next commit.
func (c *committer) gather() []ask {
	id := c.keeper.fresh()
	if id == 0 {
		c.keeper.beatNow()
		c.broker.refuse(backends.Unavailable(errBeatLate))
		return nil
	}
	mem := space{whole: max(c.claimBytes(), c.maxPayload())}
	c.reserved = c.memory.reserve(mem.whole)
	mem.left = c.reserved
	asks := c.broker.gather(id, func() uint64 { return c.number.Add(1) }, &mem)
	c.reserved -= mem.left
	c.memory.unreserve(mem.left)
	if mem.short {
		c.memory.starve(c)
	}
	for i := range asks {
		c.ledger.expect(asks[i].slots)
	}
	return asks
}

// delivered gives back the memory for what the claims of a commit brought: it is their
// sessions' by now.
func (c *committer) delivered() {
	if n := c.reserved; n > 0 {
		c.reserved = 0
		c.memory.release(n)
	}
}
