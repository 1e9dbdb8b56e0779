// Package queueset collects names of queues for a goroutine that passes them on.
package queueset

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// Set is a set of queues. The name "" stands for any queue.
type Set struct {
	wake chan struct{}

	mu     sync.Mutex
	queues map[string]struct{}
}

// maximum is the largest number of names in a Set. "" replaces further ones.
const maximum = 256

// New returns an empty Set.
func New() *Set { return &Set{wake: make(chan struct{}, 1), queues: map[string]struct{}{}} }

// Add adds queues.
func (s *Set) Add(queues ...string) {
	if len(queues) == 0 {
		return
	}
	s.mu.Lock()
	for _, q := range queues {
		if len(s.queues) >= maximum {
			q = ""
		}
		s.queues[q] = struct{}{}
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default: // it already has a signal
	}
}

// Wait waits until the Set has queues, empties it and returns them. It returns nil if ctx ends first.
func (s *Set) Wait(ctx context.Context) []string {
	select {
	case <-s.wake:
	case <-ctx.Done():
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	queues := slices.Collect(maps.Keys(s.queues))
	clear(s.queues)
	return queues
}
