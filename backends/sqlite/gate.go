package sqlite

import (
	"context"
	"slices"
	"sync"
)

// gate lets one writer in at a time. SQLite has one write lock anyway; queueing
// for it here instead of polling there makes it fair, and lets the beat pass
// everybody who waits.
type gate struct {
	mu     sync.Mutex
	held   bool
	urgent []chan struct{}
	normal []chan struct{}
}

// acquire waits for the gate until ctx ends; then it returns ctx's error.
func (g *gate) acquire(ctx context.Context, urgent bool) error {
	g.mu.Lock()
	if !g.held {
		g.held = true
		g.mu.Unlock()
		return nil
	}
	line := &g.normal
	if urgent {
		line = &g.urgent
	}
	turn := make(chan struct{})
	*line = append(*line, turn)
	g.mu.Unlock()

	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	at := slices.Index(*line, turn)
	if at >= 0 {
		*line = slices.Delete(*line, at, at+1)
	}
	g.mu.Unlock()
	if at < 0 { // the turn came at the same moment
		g.release()
	}
	return context.Cause(ctx)
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, line := range []*[]chan struct{}{&g.urgent, &g.normal} {
		if len(*line) > 0 {
			close((*line)[0])
			*line = slices.Delete(*line, 0, 1)
			return
		}
	}
	g.held = false
}
