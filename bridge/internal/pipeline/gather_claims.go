package pipeline

import (
	"cmp"
	"container/list"
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// claimGroup is the part of a commit that claims for one wait queue.
type claimGroup struct {
	queue      *waitQueue
	requests   []*ClaimRequest
	generation uint64
	slots      []backends.Slot
	bytes      int64         // payload limit, even for one job; 0: that of an answer
	beside     bool          // a commit of its own claims for it; see claimBeside
	asked      time.Duration // when its commit was about to begin, for stalls
}

// gather chooses the claims that the next commit includes, for at most maxSlots jobs. number returns the number of
// each slot's token. It uses as much of mem as it needs.
func (b *dispatcher) gather(host backends.Identity, number func() uint64, mem *claimBudget) []claimGroup {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serveAlone()
	g := claimGathering{b: b, slotsLeft: maxSlots, slot: func(s backends.Slot) backends.Slot {
		s.Token = backends.Token{Host: host, Number: number()}
		return s
	}}
	for range b.due.Len() { // without those that this loop schedules again
		wq := b.due.Front().Value.(*waitQueue)
		if g.slotsLeft <= 0 || g.names > 0 && g.names+len(wq.queues) > maxNames {
			break // it comes first next time
		}
		b.unschedule(wq)
		if !b.needsClaim(wq) {
			continue
		}
		slow := b.isSlow(wq.queues)
		if slow && b.beside >= maxBeside {
			b.schedule(wq) // the end of one of those commits wakes the committer
			continue
		}
		if !mem.reserve(wq) {
			b.schedule(wq)
			continue
		}
		if !g.claimFor(wq) {
			mem.unreserve(wq)
			b.schedule(wq) // the claims are included when their client has read or settled something
			continue
		}
		if slow {
			a := &g.groups[len(g.groups)-1]
			a.beside, a.bytes = true, mem.cost(wq)
			wq.beside = true
			b.beside++
		}
	}
	mem.divide(g.groups)
	for _, w := range g.full {
		b.remove(w)
		w.end(Answer{Err: w.Session.Client.TooManyJobs()})
	}
	for _, w := range g.none {
		b.remove(w)
		w.end(Answer{Err: cmp.Or(b.stopped, w.moved)})
	}
	return g.groups
}

// maxNames bounds the queues that the claims of one commit name. A single claim can name more. A transaction that
// reads very many queues can take longer than the sidecar waits for it. Then each claim of the database fails with
// it, again and again.
const maxNames = 4096

// claimGathering is the state of gather.
type claimGathering struct {
	b         *dispatcher
	slotsLeft int
	names     int // of queues
	slot      func(backends.Slot) backends.Slot
	groups    []claimGroup
	full      []*ClaimRequest // claims whose sessions hold too many jobs
	none      []*ClaimRequest // claims that don't wait, of sessions that get no job now
}

// claimFor includes claims of the wait queue: all fresh ones, and as many idle ones as jobs are expected plus one,
// which finds out whether there are more. It reports false if it included none.
func (g *claimGathering) claimFor(wq *waitQueue) bool {
	a := claimGroup{queue: wq, generation: wq.generation}
	fits := true
	if wq.expected > 0 {
		fits = g.add(&a, &wq.idle, wq.expected+1)
	}
	if fits {
		g.add(&a, &wq.fresh, maxSlots)
	}
	wq.expected = max(0, wq.expected-len(a.slots))
	prefetched := g.b.wantsPrefetch(wq, g.slotsLeft)
	wq.expected -= prefetched
	for range prefetched {
		a.slots = append(a.slots, g.slot(backends.Slot{Prefetch: true}))
		g.slotsLeft--
	}
	if len(a.slots) == 0 {
		return false
	}
	wq.prefetch.inCommit = true
	g.names += len(wq.queues)
	g.groups = append(g.groups, a)
	return true
}

// add includes claims of a list until they have most slots. It returns false if the next claim does not fit: that one
// comes first the next time.
func (g *claimGathering) add(a *claimGroup, all *list.List, most int) (fits bool) {
	for at := all.Front(); at != nil && most > 0 && g.slotsLeft > 0; at = at.Next() {
		w := at.Value.(*ClaimRequest)
		if w.Session.Overloaded() {
			continue
		}
		if w.Slots > g.slotsLeft && len(a.requests)+len(g.groups) > 0 {
			return false
		}
		n, held, probe := w.reserve(w.Slots)
		if held {
			g.full = append(g.full, w)
		}
		if n == 0 {
			if !held && (w.leaving || w.Once && !g.b.mayReturn(w)) && w.Session.Jobs.Exclusive() {
				g.none = append(g.none, w)
			}
			continue
		}
		w.inCommit = true
		g.slotsLeft -= n
		most -= n
		if probe {
			a.requests, a.slots = slices.Insert(a.requests, 0, w), slices.Insert(a.slots, 0, g.slot(w.Template))
			continue
		}
		a.requests = append(a.requests, w)
		for range n {
			a.slots = append(a.slots, g.slot(w.Template))
		}
	}
	return true
}

// reserve reserves job quota of the session and returns for how many jobs. A timed lease only needs a session that has no
// job alone. full is
// true if the session holds as many jobs as it can. For probe see quota.JobQuota.Reserve.
func (w *ClaimRequest) reserve(want int) (n int, full, probe bool) {
	if w.Template.Lease > 0 {
		if w.Session.Jobs.Exclusive() {
			return 0, false, false
		}
		return want, false, false
	}
	w.Reserved, full, probe = w.Session.Jobs.Reserve(want, w.Session.Client.MaxJobs())
	return w.Reserved, full, probe
}

// unanswered returns the quota of a claim that got no job.
func (w *ClaimRequest) unanswered() {
	w.Session.SettleJobs(w.Reserved, 0)
	w.Reserved = 0
}

// gatherClaims chooses the claims of the next commit.
func (c *committer) gatherClaims(hard context.Context) []claimGroup {
	id := c.heartbeat.Fresh()
	if id == 0 {
		c.heartbeat.SendNow()
		c.dispatcher.failOnce(backends.Unavailable(errHeartbeatLate))
		return nil
	}
	mem := claimBudget{whole: max(c.claimBytes(), c.maxPayload())}
	c.reserved = c.memory.ReserveClaims(mem.whole)
	mem.left = c.reserved
	groups := c.dispatcher.gather(id, func() uint64 { return c.number.Add(1) }, &mem)
	c.reserved -= mem.left
	c.memory.ReturnClaims(mem.left)
	if mem.short {
		c.memory.WakeWhenFree(c)
	}
	asked := c.stalls.begin()
	together := groups[:0]
	for _, a := range groups {
		a.asked = asked
		c.leases.Expect(a.slots)
		if a.beside {
			c.reserved -= a.bytes
			c.claimBeside(hard, a)
		} else {
			together = append(together, a)
		}
	}
	return together
}

// maxBeside bounds the commits of claimBeside, because each has a connection.
const maxBeside = 4

// claimBeside claims for a wait queue with a slow queue (backends.Mixed) in a commit that no other one waits for.
func (c *committer) claimBeside(hard context.Context, a claimGroup) {
	c.beside.Go(func() {
		err := c.commit(hard, nil, []claimGroup{a})
		c.memory.ReleaseClaims(a.bytes)
		if err != nil {
			select {
			case <-time.After(retryMax):
			case <-hard.Done():
			}
		}
		if c.dispatcher.endBeside(a.queue) {
			c.WakeClaims()
		}
	})
}

// endBeside ends claimBeside. It reports whether there is something to claim.
func (b *dispatcher) endBeside(wq *waitQueue) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	wq.beside = false
	b.beside--
	b.cleanUp(wq)
	return b.due.Len() > 0
}
