package cluster

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/crash"
)

// step is a part of an event.
type step func(r *crash.Run)

// event is a failover in steps. Some acks happen between two steps.
type event struct {
	name     string
	prepare  step // can be nil
	failover step
	repair   []step
}

// events does events one after the other, in random order. Each happens before one happens again.
type events struct {
	all   []event
	steps struct{ check, short, soak int } // about how many steps a run has
	todo  []event
	next  []step // the remaining steps of the current event
	after int    // how many of them remain after its failover
	done  []string

	// between, if not nil, repairs what a busy machine harmed between two events.
	between step
	ticks   int // without an ack since the last step, ten a second
}

// tick repairs the cluster about every 5 s without an ack: an operator does the next step of an event that stopped all work. The failover itself
// happens only after acks.
func (e *events) tick(r *crash.Run) {
	switch e.ticks++; {
	case e.ticks%50 != 0:
	case len(e.next) > 0 && len(e.next) <= e.after:
		e.strike(r)
	case len(e.next) == 0 && e.between != nil:
		e.between(r)
	}
}

// strike does the next step.
func (e *events) strike(r *crash.Run) {
	if len(e.next) == 0 {
		if len(e.todo) == 0 {
			e.todo = append(e.todo, e.all...)
			r.Rand.Shuffle(len(e.todo), func(i, j int) { e.todo[i], e.todo[j] = e.todo[j], e.todo[i] })
		}
		v := e.todo[0]
		e.todo, e.after, e.next = e.todo[1:], len(v.repair), append([]step{v.failover}, v.repair...)
		if v.prepare != nil {
			e.next = append([]step{v.prepare}, e.next...)
		}
		e.done = append(e.done, v.name)
	}
	do := e.next[0]
	e.next = e.next[1:]
	e.ticks = 0
	do(r)
}

// end repairs what the current event has harmed. A failover that has not begun could lose acks now, so it doesn't happen.
func (e *events) end(r *crash.Run) {
	if len(e.next) > e.after {
		e.next = nil
	}
	for len(e.next) > 0 {
		e.strike(r)
	}
}

// run runs workers on the sidecars while the events happen, and judges the result.
func (e *events) run(t *testing.T, sidecars []*kit.Sidecar, lossy bool, left func(testing.TB) []string) crash.Verdict {
	t.Helper()
	jobs, workers, steps := 1_000, 8, e.steps.check
	switch {
	case testing.Short():
		jobs, workers, steps = 300, 4, e.steps.short
	case kit.Soak:
		jobs, workers, steps = 20_000, 16, e.steps.soak
	}
	v := crash.Plan{
		Queue: "crash", Jobs: jobs, Workers: workers * len(sidecars), Sidecars: sidecars,
		Killers: []crash.Killer{
			{Every: jobs / 20, Kill: crash.KillWorker},
			{Every: jobs/steps + 1, Kill: e.strike},
		},
		Lossy: lossy, Backlog: 2 * workers * len(sidecars), RepairAll: e.end, OnTick: e.tick, Left: left,
	}.Run(t)
	kit.Figure(t, "failovers, in order: %v", e.done)
	if len(v.Problems) > 0 {
		t.Errorf("%d problems:\n%s", len(v.Problems), v.Summary(20))
	}
	if len(v.FirstAcks) == 0 {
		t.Error("no failover happened")
	}
	return v
}
