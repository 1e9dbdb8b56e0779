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
//
// Turns are start-time fair queueing. A queue's next turn begins where its last one ended, and a turn is the shorter the more
// weight the queue has. The turn that begins first is the next one. A queue that was empty begins at the present time,
// so that it can't save turns up.

// splitNames bounds the queues that the claims of one group name: each of them reads the empty ones, too.
const splitNames = 256

// rotation is the state of a wait queue whose queues take turns. Indexes are those of queues.
type rotation struct {
	queues []string // sorted
	turns
	large int    // the queue whose next job needs a whole answer, so that the next commit asks it first; -1: none
	more  []bool // the database possibly has jobs of the queue
	empty []bool // the last claim that asked the queue found none
	held  []int  // prefetched jobs of the queue
}

// turns are how far the queues have got. Times are in units of which a queue of the weight 1 takes turnLength for a job.
type turns struct {
	weights []int64  // without a common divisor
	ends    []int64  // of the last turn of each queue
	served  []uint64 // when each queue had its last turn: it breaks ties, which are the rule if all weights are equal
	now     int64    // the beginning of the last turn
	count   uint64   // of turns
}

// turnLength is so large that rounding changes no ratio by more than 0.1 percent, and so small that no sum overflows.
const turnLength = 1 << 20

// maxTurns bounds the queues of the wait queues that aren't in use, and whose turns the matcher keeps.
const maxTurns = 1 << 14

// newRotation returns the rotation of a wait queue. It goes on where an earlier one for the same queues ended: a slow worker
// would otherwise get all jobs from one queue. At first it asks the queue `first`.
func (m *matcher) newRotation(key string, queues []string, weights []int64, first string) *rotation {
	n := len(queues)
	r := &rotation{queues: queues, large: -1, more: make([]bool, n), empty: make([]bool, n), held: make([]int, n)}
	if kept, known := m.turns[key]; known {
		delete(m.turns, key)
		m.turnsKept -= n
		r.turns = kept
		return r
	}
	if weights == nil {
		weights = slices.Repeat([]int64{1}, n)
	}
	r.turns = turns{weights: weights, ends: make([]int64, n), served: make([]uint64, n), count: uint64(n)}
	at := r.index(first)
	for q := range r.served {
		r.served[q] = uint64((q - at + n) % n)
	}
	return r
}

// keepTurn keeps the turns of a wait queue that is dropped.
func (m *matcher) keepTurn(wq *waitQueue) {
	if wq.rotation == nil {
		return
	}
	if m.turnsKept += len(wq.queues); m.turnsKept > maxTurns {
		clear(m.turns)
		m.turnsKept = len(wq.queues)
	}
	m.turns[wq.key] = wq.rotation.turns
}

// weightsOf returns the weights of the sorted queues without their common divisor, so that equal ratios are one wait queue. If
// all are equal, it returns nil.
func weightsOf(queues []string, given map[string]int64) []int64 {
	weights, divisor := make([]int64, len(queues)), int64(0)
	for i, q := range queues {
		weights[i] = cmp.Or(given[q], 1)
		for rest := weights[i]; rest != 0; {
			divisor, rest = rest, divisor%rest
		}
	}
	if slices.Max(weights) == divisor && slices.Min(weights) == divisor {
		return nil
	}
	for i := range weights {
		weights[i] /= divisor
	}
	return weights
}

// begin returns when the next turn of a queue begins.
func (t *turns) begin(q int) int64 { return max(t.now, t.ends[q]) }

// length returns how long a turn of a queue takes.
func (t *turns) length(q int) int64 { return turnLength / t.weights[q] }

// take records a turn of a queue.
func (t *turns) take(q int) {
	t.now = t.begin(q)
	t.ends[q] = t.now + t.length(q)
	t.served[q] = t.count
	t.count++
}

// compare orders two queues by their next turns.
func (t *turns) compare(a, b int) int {
	return cmp.Or(cmp.Compare(t.begin(a), t.begin(b)), cmp.Compare(t.served[a], t.served[b]))
}

// order lists all queues by their next turns.
func (t *turns) order() []int {
	all := make([]int, len(t.ends))
	for i := range all {
		all[i] = i
	}
	slices.SortFunc(all, t.compare)
	return all
}

// clone returns a copy, for turns that are planned.
func (t *turns) clone() *turns {
	c := *t
	c.ends, c.served = slices.Clone(t.ends), slices.Clone(t.served)
	return &c
}

// Part is one claim of a group: the queues to ask, in order, and the slots to fill.
type Part struct {
	Queues []string
	Slots  []backends.Slot
	first  int // the index of the first queue that probably has jobs
}

// index returns the index of a queue.
func (r *rotation) index(queue string) int {
	i, _ := slices.BinarySearch(r.queues, queue)
	return min(i, len(r.queues)-1)
}

// handOut records that jobs of a wait queue are on their way to a worker.
func (w *waitQueue) handOut(jobs []backends.Job) {
	if r := w.rotation; r != nil {
		for i := range jobs {
			r.take(r.index(jobs[i].Queue))
		}
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

// split adds parts for the slots to the group. It takes their turns in plan. Queues that were empty have no slots of their own.
// Those whose turn it is come first in the first part.
func (g *Group) split(slots []backends.Slot, plan *turns) {
	r, n := g.queue.rotation, len(g.queue.queues)
	full := 0 // queues that were not empty
	for _, empty := range r.empty {
		if !empty {
			full++
		}
	}
	parts := min(len(slots), max(1, full), max(1, splitNames/n))
	if g.queue.large || g.queue.ownCommit {
		parts = min(parts, 1)
	}
	if parts == 0 {
		return
	}
	order := plan.order()
	if r.large >= 0 && parts == 1 {
		at := slices.Index(order, r.large)
		order, r.large = slices.Concat(order[at:], order[:at]), -1
	}
	own := make([]int, 0, n) // of order: the queues that can have a part
	for k, q := range order {
		if !r.empty[q] || full == 0 {
			own = append(own, k)
		}
	}
	names := make([]string, 2*n) // twice, so that each part has all
	for k, q := range order {
		names[k], names[n+k] = r.queues[q], r.queues[q]
	}
	partOf := make([]int, parts) // 1 for the first of g.parts; 0: none yet
	for i := range slots {
		next := 0
		for k := 1; k < parts; k++ {
			if plan.compare(order[own[k]], order[own[next]]) < 0 {
				next = k
			}
		}
		q := order[own[next]]
		plan.take(q)
		if partOf[next] == 0 {
			r.more[q] = false // until a result or a notification sets it
			from := own[next]
			if next == 0 {
				from = 0
			}
			g.parts = append(g.parts, Part{Queues: names[from : from+n : from+n], first: q})
			partOf[next] = len(g.parts)
		}
		p := &g.parts[partOf[next]-1]
		p.Slots = append(p.Slots, slots[i])
	}
}

// overlooked lists the queues of which the database possibly has jobs, but few or none are prefetched beside those of the others.
func (m *matcher) overlooked(wq *waitQueue) (all []int) {
	r, p := wq.rotation, &wq.prefetch
	if r == nil || len(p.jobs) == 0 || p.inCommit || p.bytes >= prefetchBytesMax || m.stopped != nil || !m.mayPrefetch() {
		return nil
	}
	last := int64(0) // the beginning of the last turn among the prefetched jobs
	for i, held := range r.held {
		if held > 0 {
			last = max(last, r.begin(i)+int64(held-1)*r.length(i))
		}
	}
	share := r.share(wq)
	for i, more := range r.more {
		if more && 2*r.held[i] < share(i) && r.begin(i)+int64(r.held[i])*r.length(i) <= last {
			all = append(all, i)
		}
	}
	return all[:min(len(all), splitNames)]
}

// share returns how many of the prefetched jobs a queue with jobs should have.
func (r *rotation) share(wq *waitQueue) func(queue int) int {
	all := int64(0)
	for i, more := range r.more {
		if more || r.held[i] > 0 {
			all += r.weights[i]
		}
	}
	return func(queue int) int {
		return max(1, int(int64(len(wq.prefetch.jobs))*r.weights[queue]/max(1, all)))
	}
}

// split divides the slots of a group of which the first ones are for its requests. Requests come before prefetch, so that none
// of them stays empty for it.
func (g *gathering) split(group *Group, own int) {
	wq := group.queue
	plan := wq.rotation.clone()
	switch {
	case wq.large || wq.ownCommit:
		group.split(group.Slots, plan)
	default:
		group.split(group.Slots[:own], plan)
		for i := range wq.prefetch.jobs {
			plan.take(wq.rotation.index(wq.prefetch.jobs[i].Queue))
		}
		group.split(group.Slots[own:], plan)
	}
	if len(group.Slots) == own {
		g.lookAt(group, g.m.overlooked(wq))
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
		missing := share(q) - r.held[q]
		r.more[q] = false // until a result or a notification sets it
		p := Part{Queues: r.queues[q : q+1 : q+1], first: q}
		for range min(missing, g.slotsLeft) {
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
		dry = dry || !full && !one.More && one.Err == nil && len(p.Queues) == len(r.queues)
		r.noteEmpty(p, one)
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

// noteEmpty records which queues of a part had jobs.
func (r *rotation) noteEmpty(p *Part, res *backends.ClaimResult) {
	asked := p.Queues
	for i := range res.Jobs {
		r.empty[r.index(res.Jobs[i].Queue)] = false
	}
	switch n := len(res.Jobs); {
	case res.Err != nil:
		return
	case n > 0 && (n == len(p.Slots) || res.More):
		asked = asked[:max(0, slices.Index(asked, res.Jobs[n-1].Queue))]
	case res.More:
		return
	}
	for _, q := range asked {
		r.empty[r.index(q)] = true
	}
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
	plan, jobs := r.clone(), make([][]int, len(r.queues)) // those of each queue
	for i := range p.jobs {
		q := r.index(p.jobs[i].Queue)
		jobs[q] = append(jobs[q], i)
	}
	waiting := slices.DeleteFunc(plan.order(), func(q int) bool { return len(jobs[q]) == 0 })
	order := make([]int, 0, len(p.jobs))
	for len(waiting) > 0 {
		q := waiting[0]
		order, jobs[q], waiting = append(order, jobs[q][0]), jobs[q][1:], waiting[1:]
		if plan.take(q); len(jobs[q]) > 0 {
			at, _ := slices.BinarySearchFunc(waiting, q, plan.compare)
			waiting = slices.Insert(waiting, at, q)
		}
	}
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
