package postgres

import (
	"context"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestFailedHeartbeatDropsPool: a heartbeat without an answer ends the use of the pool's connections, which can lead to the same
// dead host.
func TestFailedHeartbeatDropsPool(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		beat(t, s, 1)
		fill(t, s, 1)
		if s.pool.Stat().TotalConns() == 0 {
			t.Fatal("the pool has no connection")
		}
		begun(t, s.o.URL, "LOCK TABLE qsidecar.qsidecar_sidecars")
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := s.Heartbeat(ctx, backends.Heartbeat{Sidecar: 1, Timeout: 3600e9})
			failed <- err
		}()
		sees(t, s.o.URL, "the heartbeat waits for the lock", waitsFor(""))
		cancel()
		if err := testwait.Receive(t, "the heartbeat's error", failed); err == nil {
			t.Error("the heartbeat succeeded")
		}
		testwait.Until(t, "the pool's connections are closed", func() bool { return s.pool.Stat().TotalConns() == 0 })
	})
}
