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
	changes    uint64
	Slots      []backends.Slot
	Bytes      int64         // payload limit, even for one job; 0: that of an answer
	Asked      time.Duration // when its commit was about to begin, for Config.Stalled; the caller sets it
}

// Queues returns the queues to claim from, in order.
func (g *Group) Queues() []string { return g.queue.queues }

// maxOwn bounds the commits of single wait queues at a time, so that they leave connections of the pool to the others.
const maxOwn = 4

// hasOwnDue reports whether a wait queue is due whose claims have commits of their own, and it can have one.
func (m *matcher) hasOwnDue() bool { return m.ownDue.Len() > 0 && m.ownCommits < maxOwn }

// gather chooses claims for at most maxSlots jobs. If own is set, they are those of one wait queue, for a commit of its own.
func (m *matcher) gather(sidecar backends.Identity, number func() uint64, budget *Budget, own bool) []Group {
	due := &m.due
	if own {
		if due = &m.ownDue; !m.hasOwnDue() {
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
		if g.slotsLeft <= 0 || g.names > 0 && (own || g.names+len(wq.queues) > maxNames) {
			break // it comes first next time
		}
		m.unschedule(wq)
		if !m.needsClaim(wq) {
			continue
		}
		if wq.ownCommit = m.hasOwnCommit(wq); wq.ownCommit != own {
			if m.schedule(wq); own { // among those of its kind
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
	if own && len(g.groups) > 0 {
		g.groups[0].queue.committing = true
		m.ownCommits++
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

// endOwn ends the own commit of a wait queue.
func (m *matcher) endOwn(wq *waitQueue) {
	wq.committing = false
	m.ownCommits--
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
	group := Group{queue: wq, generation: wq.generation, changes: wq.changes}
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
