package bridge

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
)

// lockCheck takes every lock once. Only one check runs at a time, so checks don't pile up behind a lock that is stuck.
type lockCheck struct {
	mu      sync.Mutex
	running chan struct{}          // closed when the current check has ended; nil: there was none
	at      atomic.Pointer[string] // name of the lock that the last check takes or took last; nil: there was none
}

// check takes each of the locks and returns nil. If ctx ends first, it returns the name of the lock that it waits for,
// and the cause of ctx.
func (l *lockCheck) check(ctx context.Context, locks []pipeline.NamedLock) (at string, err error) {
	done := l.start(locks)
	select {
	case <-done:
		return "", nil
	default:
	}
	select {
	case <-done:
		return "", nil
	case <-ctx.Done():
		return *l.at.Load(), context.Cause(ctx)
	}
}

// start starts a check in a goroutine, unless one runs. The returned channel is closed when it has ended.
func (l *lockCheck) start(locks []pipeline.NamedLock) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != nil {
		select {
		case <-l.running:
		default:
			return l.running
		}
	}
	done := make(chan struct{})
	l.running = done
	l.at.Store(&locks[0].Name)
	go func() {
		defer close(done)
		for i := range locks {
			l.at.Store(&locks[i].Name)
			locks[i].Lock()
			locks[i].Unlock() //nolint:staticcheck // taking the lock is the whole check
		}
	}()
	return done
}
