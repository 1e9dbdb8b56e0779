package pipeline

import "sync"

// channels is a pool of channels of capacity 1 that carry one value each.
type channels[T any] struct{ pool sync.Pool }

func (p *channels[T]) get() chan T {
	if c, ok := p.pool.Get().(chan T); ok {
		return c
	}
	return make(chan T, 1)
}

// put returns a channel whose value was received.
func (p *channels[T]) put(c chan T) { p.pool.Put(c) }
