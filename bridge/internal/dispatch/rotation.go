package dispatch

import (
	"cmp"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

// Rotation. The queues of a rotating wait queue take turns: each slot of a commit asks another queue first, and the others if
// that one is empty. So a commit has a claim for each queue, if it has as many slots. A queue with jobs waits for at most one
// job of each other queue. Prefetched jobs are in that order, too. If a queue gets jobs after many of another one were
// prefetched, the next commit prefetches its share beside them.

// splitNames bounds the queues that the claims of one group name: each of them reads the empty ones, too.
const splitNames = 256

// rotation is the state of a wait queue whose queues take turns. Indexes are those of waitQueue.queues, which are sorted.
type rotation struct {
	twice []string // the queues, twice
	last  int      // the queue of the job that was handed out last
	large int      // the queue whose next job needs a whole answer, so that the next commit asks it first; -1: none
	more  []bool   // the database possibly has jobs of the queue
	held  []int    // prefetched jobs of the queue
}

// maxTurns bounds the wait queues that aren't in use, and whose last queue the scheduler keeps.
const maxTurns = 1000

// newRotation returns the rotation of a wait queue. It goes on where an earlier one for the same queues ended: a slow worker
// would otherwise get all jobs from one queue. At first it asks the queue `first`.
func (s *scheduler) newRotation(key string, queues []string, first string) *rotation {
	n := len(queues)
	r := &rotation{twice: slices.Concat(queues, queues), large: -1, more: make([]bool, n), held: make([]int, n)}
	if last, known := s.turns[key]; known {
		delete(s.turns, key)
		r.last = last
	} else {
		r.last = (r.index(first) + n - 1) % n
	}
	return r
}

// keepTurn keeps the last queue of a wait queue that is dropped.
func (s *scheduler) keepTurn(wq *waitQueue) {
	if wq.rotation == nil {
		return
	}
	if len(s.turns) >= maxTurns {
		clear(s.turns)
	}
	s.turns[wq.key] = wq.rotation.last
}

// Part is one claim of a group: the queues to ask, in order, and the slots to fill.
type Part struct {
	Queues []string
	Slots  []backends.Slot
	first  int // the index of Queues[0]
}

// index returns the index of a queue.
func (r *rotation) index(queue string) int {
	i, _ := slices.BinarySearch(r.twice[:len(r.more)], queue)
	return min(i, len(r.more)-1)
}

// handOut records that jobs of a wait queue are on their way to a worker.
func (w *waitQueue) handOut(jobs []backends.Job) {
	if r := w.rotation; r != nil && len(jobs) > 0 {
		r.last = r.index(jobs[len(jobs)-1].Queue)
	}
}

// hold counts jobs that were prefetched (1), or are not any longer (-1).
func (w *waitQueue) hold(jobs []backends.Job, by int) {
	if r := w.rotation; r != nil {
		for i := range jobs {
			r.held[r.index(jobs[i].Queue)] += by
		}
	}
}

// part returns the claim that asks a queue first, and then most-1 others.
func (r *rotation) part(first, most int) Part {
	first %= len(r.more)
	r.more[first] = false // until a result or a notification sets it
	return Part{Queues: r.twice[first : first+most : first+most], first: first}
}

// split adds parts for the slots to the group. Before them are as many others as `before`.
func (g *Group) split(slots []backends.Slot, before int) {
	r, n := g.queue.rotation, len(g.queue.queues)
	parts, first := min(len(slots), n, max(1, splitNames/n)), r.last+1+before
	if g.queue.large || g.queue.slow {
		parts = min(parts, 1)
	}
	if r.large >= 0 && parts == 1 {
		first, r.large = r.large, -1
	}
	for k := range parts {
		p := r.part(first+k, n)
		for i := k; i < len(slots); i += parts {
			p.Slots = append(p.Slots, slots[i])
		}
		g.parts = append(g.parts, p)
	}
}

// overlooked lists the queues of which the database possibly has jobs, but few or none are prefetched beside those of the others.
func (s *scheduler) overlooked(wq *waitQueue) (all []int) {
	r, p := wq.rotation, &wq.prefetch
	if r == nil || len(p.jobs) == 0 || p.inCommit || p.bytes >= prefetchBytesMax || s.stopped != nil || !s.mayPrefetch() {
		return nil
	}
	share := r.share(wq)
	for i, more := range r.more {
		if more && 2*r.held[i] < share {
			all = append(all, i)
		}
	}
	return all[:min(len(all), splitNames)]
}

// share is how many of the prefetched jobs each queue with jobs should have.
func (r *rotation) share(wq *waitQueue) int {
	queues := 0
	for i, more := range r.more {
		if more || r.held[i] > 0 {
			queues++
		}
	}
	return max(1, len(wq.prefetch.jobs)/max(1, queues))
}

// split divides the slots of a group of which the first ones are for its requests. Requests come before prefetch, so that none
// of them stays empty for it.
func (g *gathering) split(group *Group, own int) {
	wq := group.queue
	switch {
	case wq.large || wq.slow:
		group.split(group.Slots, 0)
	default:
		group.split(group.Slots[:own], 0)
		group.split(group.Slots[own:], own)
	}
	if len(group.Slots) == own {
		g.lookAt(group, g.s.overlooked(wq))
	}
}

// asksAll reports whether a part of the group asks all of its queues.
func (g *Group) asksAll() bool {
	return g.parts == nil || slices.ContainsFunc(g.parts, func(p Part) bool { return len(p.Queues) == len(g.queue.queues) })
}

// lookAt adds claims for the queues that prefetch overlooked.
func (g *gathering) lookAt(group *Group, queues []int) {
	r := group.queue.rotation
	share := r.share(group.queue)
	for _, q := range queues {
		p := r.part(q, 1)
		for range min(share-r.held[q], g.slotsLeft) {
			p.Slots = append(p.Slots, g.slot(backends.Slot{Prefetch: true}))
			g.slotsLeft--
		}
		if len(p.Slots) > 0 {
			group.Slots = append(group.Slots, p.Slots...)
			group.parts = append(group.parts, p)
		}
	}
}

// Len is the number of parts.
func (g *Group) Len() int { return max(1, len(g.parts)) }

// Part returns a part. Each is a claim of its own.
func (g *Group) Part(i int) Part {
	if g.parts == nil {
		return Part{Queues: g.queue.queues, Slots: g.Slots}
	}
	return g.parts[i]
}

// merge makes one result of those of the parts: the jobs in the order of the group's slots. dry is true if the database had no
// more jobs for the wait queue, and short if a part had too little memory for its first job.
func (g *Group) merge(results []backends.ClaimResult) (res backends.ClaimResult, dry, short bool) {
	if g.parts == nil {
		res = results[0]
		return res, len(res.Jobs) < len(g.Slots) && !res.More, g.Bytes > 0 && res.More && len(res.Jobs) == 0
	}
	at := make(map[backends.Token]int, len(g.Slots))
	for i := range g.Slots {
		at[g.Slots[i].Token] = i
	}
	r := g.queue.rotation
	for i := range results {
		one, p := &results[i], &g.parts[i]
		res.Jobs = append(res.Jobs, one.Jobs...)
		res.More = res.More || one.More
		full := len(one.Jobs) == len(p.Slots)
		dry = dry || !full && !one.More && one.Err == nil && len(p.Queues) == len(r.more)
		if one.More && len(one.Jobs) == 0 { // after an error it waits for a notification
			r.more[p.first] = true
		} else if full || one.More {
			r.more[r.index(one.Jobs[len(one.Jobs)-1].Queue)] = true
		}
		if one.More && len(one.Jobs) == 0 && (g.Bytes > 0 || len(g.parts) > 1) {
			short, r.large = true, p.first
		}
	}
	slices.SortStableFunc(res.Jobs, func(a, b backends.Job) int { return at[a.Token] - at[b.Token] })
	return res, dry, short
}

// tookNone records that the claims of the group have no result.
func (g *Group) tookNone() {
	for i := range g.parts {
		g.queue.rotation.more[g.parts[i].first] = true
	}
}

// take returns the jobs at the beginning that belong to the next n slots of the group, after `at` others.
func (g *Group) take(jobs []backends.Job, at, n int) int {
	taken := 0
	for _, slot := range g.Slots[at : at+n] {
		if taken < len(jobs) && jobs[taken].Token == slot.Token {
			taken++
		}
	}
	return taken
}

// interleave orders prefetched jobs so that their queues take turns after the one that was served last. Jobs of a queue keep
// their order. It leaves those of an older identity in front, because they can't be handed out.
func (w *waitQueue) interleave() {
	r, p := w.rotation, &w.prefetch
	if r == nil || len(p.jobs) == 0 || p.jobs[0].Token.Sidecar != p.jobs[len(p.jobs)-1].Token.Sidecar {
		return
	}
	n := len(r.more)
	turns, order := make([]int, n), make([]int, len(p.jobs))
	key := make([]int, len(p.jobs))
	for i := range p.jobs {
		q := r.index(p.jobs[i].Queue)
		key[i], order[i] = turns[q]*n+(q-r.last-1+n)%n, i
		turns[q]++
	}
	slices.SortFunc(order, func(a, b int) int { return key[a] - key[b] })
	p.arrange(order)
}

// arrange puts the prefetched jobs into another order.
func (p *prefetch) arrange(order []int) {
	old := *p
	p.jobs, p.since, p.asked = make([]backends.Job, 0, len(order)), p.since[:0:0], p.asked[:0:0]
	for _, i := range order {
		p.jobs, p.since, p.asked = append(p.jobs, old.jobs[i]), append(p.since, old.since[i]), append(p.asked, old.asked[i])
	}
}

// oldestFirst orders the prefetched jobs by their claims.
func (p *prefetch) oldestFirst() {
	order := make([]int, len(p.jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p.since[a], p.since[b]) })
	p.arrange(order)
}
