package bridge

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/lockcheck"
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
	if at, err := b.lockCheck.Check(ctx, b.locks()); err != nil {
		return fmt.Errorf("the sidecar is stuck (%s): %w", at, err)
	}
	return nil
}

// locks returns the locks that no code holds for long.
func (b *Bridge) locks() []lockcheck.Lock {
	all := []lockcheck.Lock{{Name: "sessions", Locker: &b.mu}}
	for _, db := range b.plan.Load().databases {
		for _, l := range db.Locks() {
			all = append(all, lockcheck.Lock{Name: l.Name + " of " + db.Name, Locker: l.Locker})
		}
	}
	return all
}
