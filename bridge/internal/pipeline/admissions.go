package pipeline

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
)

// admissions admits jobs of groups after commits, and beside the next ones, so that no other write or claim waits for an admission.
// One runs at a time. The groups of the commits during it go into the next one together.
type admissions struct {
	admit func(ctx context.Context, groups []backends.Group) (ready []string)
	begin func(queues []string)        // gets the queue of each group that waits for an admission
	end   func(queues, ready []string) // gets the same when it is over, and the queues with ready jobs

	mu      sync.Mutex
	groups  map[backends.Group]struct{} // for the next one
	running bool
	all     sync.WaitGroup
}

// add admits jobs of groups soon. After hard ends, maintenance does, here or elsewhere.
func (a *admissions) add(hard context.Context, groups []backends.Group) {
	if len(groups) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.groups == nil {
		a.groups = map[backends.Group]struct{}{}
	}
	var queues []string
	for _, g := range groups {
		if _, known := a.groups[g]; !known {
			a.groups[g] = struct{}{}
			queues = append(queues, g.Queue)
		}
	}
	a.begin(queues)
	if !a.running {
		a.running = true
		a.all.Go(func() { a.run(hard) })
	}
}

func (a *admissions) run(hard context.Context) {
	for {
		a.mu.Lock()
		groups := slices.Collect(maps.Keys(a.groups))
		a.groups = nil
		a.running = len(groups) > 0 && hard.Err() == nil
		goesOn := a.running
		a.mu.Unlock()
		if !goesOn {
			a.end(queuesOfGroups(groups), nil)
			return
		}
		a.end(queuesOfGroups(groups), a.admit(hard, groups))
	}
}

// queuesOfGroups returns the queue of each group.
func queuesOfGroups(groups []backends.Group) []string {
	queues := make([]string, len(groups))
	for i, g := range groups {
		queues[i] = g.Queue
	}
	return queues
}

// wait returns when none runs. The caller adds no more.
func (a *admissions) wait() { a.all.Wait() }
