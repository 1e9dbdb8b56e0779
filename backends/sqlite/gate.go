package sqlite

import (
	"context"
	"slices"
	"sync"
)

// gate admits one writer at a time. SQLite has only one write lock, which programs
// poll. Queueing in the gate makes waiting fair within the process, and lets the
// heartbeat overtake all other writers.
type gate struct {
	mu     sync.Mutex
	held   bool
	urgent []chan struct{}
	normal []chan struct{}
}

// acquire waits for the gate. It returns ctx's error if ctx ends first.
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
	if at < 0 { // the gate was granted at the same moment
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
