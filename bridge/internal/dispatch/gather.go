package dispatch

import (
	"cmp"
	"container/list"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Group is the part of a commit that claims for one wait queue.
type Group struct {
	queue      *waitQueue
	requests   []*Request
	parts      []Part // nil: it is one claim, for all queues in their order
	generation uint64
	admissions uint64
	Slots      []backends.Slot
	Bytes      int64         // payload limit, even for one job; 0: that of an answer
	Asked      time.Duration // when its commit was about to begin, for Config.Stalled; the caller sets it
}

// Queues returns the queues to claim from, in order.
func (g *Group) Queues() []string { return g.queue.queues }

// maxSlow bounds the commits of slow wait queues at a time, so that they leave connections of the pool to the others.
const maxSlow = 4

// hasSlow reports whether a slow wait queue is due, and can have a commit.
func (m *matcher) hasSlow() bool { return m.slowDue.Len() > 0 && m.slowCommits < maxSlow }

// gather chooses claims for at most maxSlots jobs. If slow is set, they are those of one slow wait queue.
func (m *matcher) gather(sidecar backends.Identity, number func() uint64, budget *Budget, slow bool) []Group {
	due := &m.due
	if slow {
		if due = &m.slowDue; !m.hasSlow() {
			return nil
		}
	}
	m.serveAlone()
	g := gathering{m: m, slotsLeft: maxSlots, slot: func(slot backends.Slot) backends.Slot {
		slot.Token = backends.Token{Sidecar: sidecar, Number: number()}
		return slot
	}}
	for range due.Len() { // without those that this loop schedules again
		wq := due.Front().Value.(*waitQueue)
		if g.slotsLeft <= 0 || g.names > 0 && (slow || g.names+len(wq.queues) > maxNames) {
			break // it comes first next time
		}
		m.unschedule(wq)
		if !m.needsClaim(wq) {
			continue
		}
		if wq.slow = wq.noPrefetch && slices.ContainsFunc(wq.queues, m.isSlow); wq.slow != slow {
			if m.schedule(wq); slow { // among those of its kind
				m.Wake()
			}
			continue
		}
		if !budget.reserve(wq) {
			m.schedule(wq)
			continue
		}
		if !g.claimFor(wq) {
			budget.unreserve(wq)
			m.schedule(wq) // the claims are included when their client has read or settled something
		}
	}
	budget.divide(g.groups)
	if slow && len(g.groups) > 0 {
		g.groups[0].queue.apart = true
		m.slowCommits++
	}
	for _, r := range g.full {
		m.remove(r)
		r.end(Answer{Err: r.Session.Client.TooManyJobs()})
	}
	for _, r := range g.none {
		m.remove(r)
		r.end(Answer{Err: cmp.Or(m.stopped, r.moved)})
	}
	return g.groups
}

// endSlow ends the commit of a slow wait queue.
func (m *matcher) endSlow(wq *waitQueue) {
	wq.apart = false
	m.slowCommits--
	m.cleanUp(wq)
	m.Wake() // it, or another one, is possibly due
}

// maxNames bounds the queues that the claims of one commit name. A single claim can name more. A transaction that
// reads very many queues can take longer than the sidecar waits for it. Then each claim of the database fails with
// it, again and again.
const maxNames = 4096

// gathering is the state of gather.
type gathering struct {
	m         *matcher
	slotsLeft int
	names     int // of queues
	slot      func(backends.Slot) backends.Slot
	groups    []Group
	full      []*Request // claims whose sessions hold too many jobs
	none      []*Request // claims that don't wait, of sessions that get no job now
}

// claimFor includes claims of the wait queue: all fresh ones, and as many idle ones as jobs are expected plus one,
// which finds out whether there are more. It reports false if it included none.
func (g *gathering) claimFor(wq *waitQueue) bool {
	group := Group{queue: wq, generation: wq.generation, admissions: wq.admissions}
	fits := true
	if wq.expected > 0 {
		fits = g.add(&group, &wq.idle, wq.expected+1)
	}
	if fits {
		g.add(&group, &wq.fresh, maxSlots)
	}
	wq.expected = max(0, wq.expected-len(group.Slots))
	own := len(group.Slots)
	prefetched := g.m.wantsPrefetch(wq, g.slotsLeft)
	wq.expected -= prefetched
	for range prefetched {
		group.Slots = append(group.Slots, g.slot(backends.Slot{Prefetch: true}))
		g.slotsLeft--
	}
	if wq.rotation != nil {
		g.split(&group, own)
	}
	if len(group.Slots) == 0 {
		return false
	}
	wq.prefetch.inCommit = true
	for i := range group.Len() {
		g.names += len(group.Part(i).Queues)
	}
	g.groups = append(g.groups, group)
	return true
}

// add includes claims of a list until they have most slots. It returns false if the next claim does not fit: that one
// comes first the next time.
func (g *gathering) add(group *Group, all *list.List, most int) (fits bool) {
	for at := all.Front(); at != nil && most > 0 && g.slotsLeft > 0; at = at.Next() {
		r := at.Value.(*Request)
		if r.Session.Overloaded() {
			continue
		}
		if r.Slots > g.slotsLeft && len(group.requests)+len(g.groups) > 0 {
			return false
		}
		n, held, probe := r.reserve(r.Slots)
		if held {
			g.full = append(g.full, r)
		}
		if n == 0 {
			if !held && (r.leaving || r.Once && !g.m.mayReturn(r)) && r.Session.Jobs.Exclusive() {
				g.none = append(g.none, r)
			}
			continue
		}
		r.inCommit = true
		g.slotsLeft -= n
		most -= n
		if probe {
			group.requests, group.Slots = slices.Insert(group.requests, 0, r), slices.Insert(group.Slots, 0, g.slot(r.Template))
			continue
		}
		group.requests = append(group.requests, r)
		for range n {
			group.Slots = append(group.Slots, g.slot(r.Template))
		}
	}
	return true
}
