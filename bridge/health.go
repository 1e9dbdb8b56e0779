package bridge

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Health is the current ability of the sidecar to serve. It contains no secrets.
type Health struct {
	Starting  bool // the sockets do not listen yet
	Draining  bool // the sidecar is stopping and hands out no more jobs
	Databases []DatabaseHealth
}

// DatabaseHealth is the health of one configured database.
type DatabaseHealth struct {
	Name      string
	Reachable bool          // the last heartbeat succeeded and the next one is not late
	Beat      time.Duration // time since the last successful heartbeat; negative: none yet
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
	for name, db := range p.byName {
		h.Databases = append(h.Databases, DatabaseHealth{Name: name, Reachable: db.Reachable(), Beat: db.HeartbeatAge()})
	}
	slices.SortFunc(h.Databases, func(a, b DatabaseHealth) int { return cmp.Compare(a.Name, b.Name) })
	return h
}

// liveness detects whether the sidecar is stuck.
type liveness struct {
	mu      sync.Mutex
	running chan struct{} // closed when the current check has ended; nil: there was none
	at      atomic.Pointer[string]
}

// Alive returns nil as soon as each part of the sidecar has made progress. If ctx ends first, the error names the
// part that did not. The result does not depend on any database: a part that waits for one is alive.
func (b *Bridge) Alive(ctx context.Context) error {
	done := b.liveness.check(b.parts())
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the sidecar is stuck (%s): %w", *b.liveness.at.Load(), context.Cause(ctx))
	}
}

// part is a lock that no code holds for long.
type part struct {
	name string
	lock sync.Locker
}

func (b *Bridge) parts() []part {
	all := []part{{"sessions", &b.mu}}
	for _, db := range b.plan.Load().databases {
		for _, l := range db.Locks() {
			all = append(all, part{l.Name + " of " + db.Name, l.Locker})
		}
	}
	return all
}

// check takes every lock once, in a goroutine. Only one check runs at a time, so checks don't pile up behind a lock
// that is stuck.
func (v *liveness) check(parts []part) <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.running != nil {
		select {
		case <-v.running:
		default:
			return v.running
		}
	}
	done := make(chan struct{})
	v.running = done
	v.at.Store(&parts[0].name)
	go func() {
		defer close(done)
		for i := range parts {
			v.at.Store(&parts[i].name)
			parts[i].lock.Lock()
			parts[i].lock.Unlock() //nolint:staticcheck // taking the lock is the whole check
		}
	}()
	return done
}
