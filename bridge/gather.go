package bridge

import (
	"slices"

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
	var asks []ask
	var full []*waiter
	room := maxSlots
	for i := 0; i < len(b.order) && room > 0; i++ {
		ln := b.order[i]
		a := ask{line: ln, hint: ln.hint}
		if !b.wants(ln, room) || !mem.take(ln) {
			continue
		}
		for _, w := range ln.waiters {
			if w.asking || w.seen >= ln.hint || w.sess.overloaded() {
				continue
			}
			if w.slots > room && len(a.waiters)+len(asks) > 0 {
				break // it comes first next time
			}
			n, held := w.take(w.slots)
			if held {
				full = append(full, w)
			}
			if n == 0 {
				continue
			}
			w.asking = true
			room -= n
			a.waiters = append(a.waiters, w)
			for range n {
				slot := w.lease
				slot.Token = backends.Token{Host: host, Number: number()}
				a.slots = append(a.slots, slot)
			}
			if room <= 0 {
				break
			}
		}
		for range b.wantsAhead(ln, room) {
			a.slots = append(a.slots, backends.Slot{Token: backends.Token{Host: host, Number: number()}, Ahead: true})
			room--
		}
		if len(a.slots) > 0 {
			ln.ahead.asking = true
			asks = append(asks, a)
		} else {
			mem.untake(ln)
		}
	}
	mem.divide(asks)
	for _, w := range full {
		b.remove(w)
		w.answer <- answer{err: w.sess.tooMany()}
	}
	if len(b.order) > 1 { // whoever came first now comes last next time
		b.order = append(b.order[1:], b.order[0])
	}
	return asks
}

// take is for how many jobs the database may be asked for the waiter: the places of its
// session's that it took for them, and all for a timed lease. full: it holds too many.
func (w *waiter) take(want int) (n int, full bool) {
	if w.lease.Lease > 0 {
		return want, false
	}
	w.places, full = w.sess.places.take(want, w.sess.mostHeld())
	return w.places, full
}

// unanswered gives back the places of a waiter whose ask brought nothing.
func (w *waiter) unanswered() {
	w.sess.placed(w.places, 0)
	w.places = 0
}

// wants reports whether there is somebody in the line to ask for. b.mu is held.
func (b *broker) wants(ln *line, room int) bool {
	return slices.ContainsFunc(ln.waiters, func(w *waiter) bool {
		return !w.asking && w.seen < ln.hint && !w.sess.overloaded()
	}) || b.wantsAhead(ln, room) > 0
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
