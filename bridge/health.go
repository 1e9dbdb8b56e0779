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

// Health is how fit the sidecar is to serve, at this moment. It has no secrets in it.
type Health struct {
	Starting  bool // the sockets do not listen yet
	Draining  bool // it stops, and gives no more jobs out
	Databases []DatabaseHealth
}

// DatabaseHealth is whether a database that queues live in is reachable.
type DatabaseHealth struct {
	Name      string
	Reachable bool          // the last heartbeat reached it, and is not late
	Beat      time.Duration // since the last heartbeat that did; negative: none has
}

// Health asks no database.
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

// liveness finds out whether the sidecar is stuck.
type liveness struct {
	mu      sync.Mutex
	looking chan struct{} // closed when the look under way has ended; nil: there is none
	at      atomic.Pointer[string]
}

// Alive returns nil as soon as each of the sidecar's parts has shown that it goes on, and
// says which does not when ctx ends before that. It does not depend on any database: a
// part that waits for one is alive.
func (b *Bridge) Alive(ctx context.Context) error {
	done := b.liveness.look(b.parts())
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

// part is something that nobody may keep to himself for long.
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

// look takes every lock once. One look at a time: where one is stuck, there are no more.
func (v *liveness) look(parts []part) <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.looking != nil {
		select {
		case <-v.looking:
		default:
			return v.looking
		}
	}
	done := make(chan struct{})
	v.looking = done
	v.at.Store(&parts[0].name)
	go func() {
		defer close(done)
		for i := range parts {
			v.at.Store(&parts[i].name)
			parts[i].lock.Lock()
			parts[i].lock.Unlock() //nolint:staticcheck // that it could be had is all that was asked
		}
	}()
	return done
}
