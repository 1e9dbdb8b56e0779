// Package lockcheck detects whether a program is stuck, by its locks.
package lockcheck

import (
	"context"
	"sync"
	"sync/atomic"
)

// Lock is a lock that no code holds for long.
type Lock struct {
	Name string
	sync.Locker
}

// Checker takes every lock once. Only one check runs at a time, so checks don't pile up behind a lock that is stuck.
type Checker struct {
	mu      sync.Mutex
	running chan struct{} // closed when the current check has ended; nil: there was none
	at      atomic.Pointer[string]
}

// Check takes each of the locks and returns nil. If ctx ends first, it returns the name of the lock that it waits for,
// and the cause of ctx.
func (c *Checker) Check(ctx context.Context, locks []Lock) (at string, err error) {
	done := c.start(locks)
	select {
	case <-done:
		return "", nil
	default:
	}
	select {
	case <-done:
		return "", nil
	case <-ctx.Done():
		return *c.at.Load(), context.Cause(ctx)
	}
}

// At returns the name of the lock that the last check takes or took last, or "" before the first check.
func (c *Checker) At() string {
	if at := c.at.Load(); at != nil {
		return *at
	}
	return ""
}

// start starts a check in a goroutine, unless one runs. The returned channel is closed when it has ended.
func (c *Checker) start(locks []Lock) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil {
		select {
		case <-c.running:
		default:
			return c.running
		}
	}
	done := make(chan struct{})
	c.running = done
	c.at.Store(&locks[0].Name)
	go func() {
		defer close(done)
		for i := range locks {
			c.at.Store(&locks[i].Name)
			locks[i].Lock()
			locks[i].Unlock() //nolint:staticcheck // taking the lock is the whole check
		}
	}()
	return done
}
