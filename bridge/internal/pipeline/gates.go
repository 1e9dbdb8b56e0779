package pipeline

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

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
	timer       *time.Timer   // of a rate; nil: none
	rateUntil   time.Duration // when it ends
	results     int           // of claims
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

// note records what a claim found out. It returns true if the queue got limits, or lost them.
func (g *gates) note(r backends.GateResult) (changed bool) {
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
		return changed
	}
	if one.timer != nil {
		one.timer.Stop()
		one.timer = nil
	}
	one.results++
	switch one.closedUntil = 0; {
	case r.Closed && r.After > 0:
		after := max(r.After, gatePace)
		one.closedUntil = g.clock() + min(after, gateIdle)
		one.rateUntil = g.clock() + after
		one.timer = time.AfterFunc(after, func() { g.open(r.Queue) })
	case r.Closed:
		one.closedUntil = g.clock() + gateIdle
	}
	return changed
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
	if !g.some.Load() {
		return
	}
	switch p.write.(type) {
	case backends.Ack, backends.Nack, backends.Release:
	default:
		return
	}
	var queues []string
	for i := range p.runs {
		if q := p.runs[i].Queue; !slices.Contains(queues, q) {
			queues = append(queues, q)
		}
	}
	for _, q := range queues {
		if g.waitsForSettle(q) {
			g.open(q)
		}
	}
}

// waitsForSettle reports whether the cap closed the queue.
func (g *gates) waitsForSettle(queue string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[queue]
	return one != nil && one.timer == nil && one.closedUntil > 0
}

// WaitsForRate reports whether the rate of a queue lets no job start at present, as the last claim here found out.
func (p *Pipeline) WaitsForRate(queue string) bool { return p.executor.gates.waitsForRate(queue) }
