package bridge

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
)

// Health is the current ability of the sidecar to serve. It contains no secrets.
type Health struct {
	Starting  bool           // the sockets do not listen yet
	Draining  bool           // the sidecar is stopping and hands out no more jobs
	Lost      []SocketHealth // the sockets that clients can't connect to
	Databases []DatabaseHealth
}

// SocketHealth is a socket whose file was removed or replaced, and that can't be bound again.
type SocketHealth struct {
	Path string
	Err  error
}

// DatabaseHealth is the health of one configured database.
type DatabaseHealth struct {
	Name         string
	Reachable    bool          // the last heartbeat succeeded and the next one is not late
	HeartbeatAge time.Duration // time since the last successful heartbeat; negative: none yet
}

// Health returns the current health. It sends no query.
func (b *Bridge) Health() Health {
	h := Health{Draining: b.draining.Load(), Starting: true}
	select {
	case <-b.ready:
		h.Starting = false
	default:
	}
	p := b.plan.Load()
	for _, s := range p.opts.Sockets {
		if err := b.socketError(s.Path); err != nil {
			h.Lost = append(h.Lost, SocketHealth{s.Path, err})
		}
	}
	for name, db := range p.byName {
		h.Databases = append(h.Databases, DatabaseHealth{Name: name, Reachable: db.Reachable(), HeartbeatAge: db.HeartbeatAge()})
	}
	slices.SortFunc(h.Databases, func(a, b DatabaseHealth) int { return cmp.Compare(a.Name, b.Name) })
	return h
}

// Alive returns nil as soon as each part of the sidecar has made progress. If ctx ends first, the error names the
// part that did not. The result does not depend on any database: a part that waits for one is alive.
func (b *Bridge) Alive(ctx context.Context) error {
	if at, err := b.lockCheck.check(ctx, b.locks()); err != nil {
		return fmt.Errorf("the sidecar is stuck (%s): %w", at, err)
	}
	return nil
}

// locks returns the locks that no code holds for long.
func (b *Bridge) locks() []pipeline.NamedLock {
	all := []pipeline.NamedLock{{Name: "sessions", Locker: &b.mu}}
	for _, db := range b.plan.Load().databases {
		for _, l := range db.Locks() {
			all = append(all, pipeline.NamedLock{Name: l.Name + " of " + db.Name, Locker: l.Locker})
		}
	}
	return all
}

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
