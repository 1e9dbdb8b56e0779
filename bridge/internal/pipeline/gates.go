package pipeline

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Claims of queues with limits. The first claim of such a queue finds out about the limits (GateResult.Missed), and note makes a gate. From
// then on the wait queue has commits of its own, one at a time:
//
//  1. Dispatcher.Add: a claim that waits is idle if the gate is closed. One that doesn't wait is held if the cap is full and a settle
//     is under way (isFull, MarkSettling). All others are due.
//  2. executor.commitOwn remembers the settles so far (gates.settles), and commits the claim: package core locks the gate's row, counts,
//     and claims as many jobs as the limits allow.
//  3. executor.noteGates closes the gate if the limits left slots empty. If a settle has ended since step 2, it stays open and the claims ask again
//     (Dispatcher.Reopen).
//  4. A committed settle here (gates.settled), or the timer of the rate, opens a closed gate: Reopen makes idle and held claims due. Others
//     still find the gate closed until these have a result.
//  5. After gateIdle, the next notification makes them due: settles of other sidecars open no gate here.

const (
	// gatePace is the shortest time between a claim that the rate stopped and the next one. So a high rate is claimed in groups.
	gatePace = 20 * time.Millisecond
	// gateIdle is for how long at most new jobs, and new claims that wait, cause no commit after one that the limits stopped. A settle of the queue here,
	// or the rate, ends it earlier. Settles elsewhere, and changed limits, are found by a claim after maintenance has found
	// ready jobs of waiting claims, which it looks for about every second.
	gateIdle = 500 * time.Millisecond
)

// gates are the queues with limits, as claims reported them. Such a queue has no prefetch, and its claims
// have commits of their own, because they wait for each other over all sidecars.
type gates struct {
	clock func() time.Duration
	wake  func(queue string) bool // the queue possibly has jobs that a claim gets; true: one waits
	some  atomic.Bool             // nearly always false: then no method locks

	mu  sync.Mutex
	all map[string]*gate
}

type gate struct {
	closedUntil time.Duration
	full        bool          // the cap, after the last claim
	timer       *time.Timer   // of a rate; nil: none
	rateUntil   time.Duration // when it ends
	results     int           // of claims
	settles     int           // committed writes of this sidecar that ended claims of the queue
}

func newGates(clock func() time.Duration, wake func(queue string) bool) *gates {
	return &gates{clock: clock, wake: wake, all: map[string]*gate{}}
}

// has reports whether the queue has limits.
func (g *gates) has(queue string) bool {
	if !g.some.Load() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all[queue] != nil
}

// isClosed reports whether a claim of the queue would get nothing.
func (g *gates) isClosed(queue string) bool {
	if !g.some.Load() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[queue]
	return one != nil && g.clock() < one.closedUntil
}

// isFull reports whether a claim of the queue would get nothing before a settle, as the last claim found out.
func (g *gates) isFull(queue string) bool {
	if !g.some.Load() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[queue]
	return one != nil && one.full
}

// waitsForRate reports whether the rate lets no job of the queue start at present, as the last claim found out.
func (g *gates) waitsForRate(queue string) bool {
	if !g.some.Load() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[queue]
	return one != nil && one.timer != nil && g.clock() < one.rateUntil
}

// settles returns how many committed writes have ended claims of each queue with limits, before a claim of them begins.
func (g *gates) settles(queues []string) map[string]int {
	if !g.some.Load() {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[string]int{}
	for _, q := range queues {
		if one := g.all[q]; one != nil {
			all[q] = one.settles
		}
	}
	return all
}

// note records what a claim found out. before are the settles before it began. It returns whether the queue got limits, or lost them,
// and whether a claim that found the cap full must try again, because a settle has ended since.
func (g *gates) note(r backends.GateResult, before map[string]int) (changed, again bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[r.Queue]
	changed = (one == nil) != r.Removed
	switch {
	case r.Removed:
		delete(g.all, r.Queue)
	case one == nil:
		one = &gate{}
		g.all[r.Queue] = one
	}
	g.some.Store(len(g.all) > 0)
	if one == nil {
		return changed, false
	}
	if one.timer != nil {
		one.timer.Stop()
		one.timer = nil
	}
	one.results++
	one.full = r.Full
	switch one.closedUntil = 0; {
	case r.Closed && r.After > 0:
		after := max(r.After, gatePace)
		one.closedUntil = g.clock() + min(after, gateIdle)
		one.rateUntil = g.clock() + after
		one.timer = time.AfterFunc(after, func() { g.open(r.Queue) })
	case r.Closed && one.settles != before[r.Queue]:
		again = true
	case r.Closed:
		one.closedUntil = g.clock() + gateIdle
	}
	return changed, again
}

// open makes the claims that wait for the queue try again. For others it stays closed until these have a result: the first
// ones get what there is.
func (g *gates) open(queue string) {
	g.mu.Lock()
	one := g.all[queue]
	if one == nil {
		g.mu.Unlock()
		return
	}
	until, results := one.closedUntil, one.results
	one.closedUntil = 0
	g.mu.Unlock()
	if !g.wake(queue) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if one.results == results {
		one.closedUntil = until
	}
}

// stop ends the timers. A slow rate can have one of an hour, which would keep the pipeline of a retired database in memory.
func (g *gates) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, one := range g.all {
		if one.timer != nil {
			one.timer.Stop()
		}
	}
}

// settled opens the queues whose claims a committed write ended.
func (g *gates) settled(p *PendingWrite) {
	for _, q := range g.frees(p) {
		if g.countSettle(q) {
			g.open(q)
		}
	}
}

// frees returns the queues with limits whose claims a write ends.
func (g *gates) frees(p *PendingWrite) (queues []string) {
	if !g.some.Load() {
		return nil
	}
	switch p.write.(type) {
	case backends.Ack, backends.Nack, backends.Release:
	default:
		return nil
	}
	for i := range p.runs {
		if q := p.runs[i].Queue; !slices.Contains(queues, q) && g.has(q) {
			queues = append(queues, q)
		}
	}
	return queues
}

// countSettle reports whether the cap closed the queue.
func (g *gates) countSettle(queue string) (closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[queue]
	if one == nil {
		return false
	}
	one.settles++
	return one.timer == nil && one.closedUntil > 0
}

// WaitsForRate reports whether the rate of a queue lets no job start at present, as the last claim here found out.
func (p *Pipeline) WaitsForRate(queue string) bool { return p.executor.gates.waitsForRate(queue) }
