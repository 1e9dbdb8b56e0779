package bridge

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestHealthFollowsTheHeartbeat shows that an unreachable database makes the sidecar unready and leaves it alive. When the
// database is back, the sidecar is ready again.
func TestHealthFollowsTheHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		s := start(t, options(db))
		reachable := func() bool {
			h := s.Health()
			return len(h.Databases) == 1 && h.Databases[0].Name == "main" && h.Databases[0].Reachable && h.Databases[0].HeartbeatAge >= 0
		}
		eventually(t, reachable)
		db.heartbeat.Store(&errDown)
		eventually(t, func() bool { return !reachable() })
		if err := s.Alive(t.Context()); err != nil {
			t.Errorf("without its database: %v", err)
		}
		if h := s.Health(); h.Starting || h.Draining {
			t.Errorf("health is %+v", h)
		}
		db.heartbeat.Store(nil)
		eventually(t, reachable)
	})
}

func TestHealthBeforeTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFor(t, options(memory.New()), testLog(t))
		if h := b.Health(); !h.Starting || h.Draining || h.Databases[0].Reachable || h.Databases[0].HeartbeatAge >= 0 {
			t.Errorf("before Run: %+v", h)
		}
		s := run(t, b)
		s.stop()
		eventually(t, func() bool { return b.Health().Draining })
	})
}

// TestStuckIsNoticed shows that a part that keeps its lock is named, and that only one check waits for it, however
// many callers there are.
func TestStuckIsNoticed(t *testing.T) {
	b := newFor(t, options(memory.New()), testLog(t))
	claims := b.config.Load().databases[0].Locks()[0]
	claims.Lock()
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan error, 1)
		go func() { answer <- b.Alive(ctx) }()
		testwait.Until(t, "the check waits for the lock", func() bool {
			at := b.lockCheck.at.Load()
			return at != nil && *at == "claims of main"
		})
		cancel()
		if err := testwait.Receive(t, "the answer", answer); err == nil || !strings.Contains(err.Error(), "claims of main") {
			t.Errorf("with a lock that is kept: %v", err)
		}
	}
	claims.Unlock()
	if err := b.Alive(t.Context()); err != nil {
		t.Errorf("when it is free again: %v", err)
	}
}
