package mysql

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestFailedHeartbeatDropsPool: a heartbeat without an answer ends the use of the pool's connections, which can lead to the same
// dead host.
func TestFailedHeartbeatDropsPool(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		join(t, s, 1)
		before := present(t, s)
		tx, err := connect(t, m, name).BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(t.Context(), "SELECT * FROM qsidecar_sidecars FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := s.Heartbeat(ctx, backends.Heartbeat{Sidecar: 1, Timeout: time.Hour, Kind: backends.HeartbeatRenew})
			failed <- err
		}()
		testwait.Until(t, "the heartbeat waits for the lock", func() bool {
			return numberOf(t, m, "", fmt.Sprintf("SELECT COUNT(*) FROM %s WHERE db = '%s' AND info LIKE 'UPDATE qsidecar_sidecars%%'", testserver.MySQLSessions, name)) > 0
		})
		cancel()
		if err := testwait.Receive(t, "the heartbeat's error", failed); err == nil {
			t.Error("the heartbeat succeeded")
		}
		if present(t, s) == before {
			t.Error("the Store still uses a connection from before the failed heartbeat")
		}
	})
}

// present returns the name of the connection that the pool hands out now.
func present(t *testing.T, s *Store) string {
	t.Helper()
	c, err := s.pool.Take(t.Context(), &s.Meter)
	if err != nil {
		t.Fatal(err)
	}
	defer s.pool.Put(c)
	return c.Name
}
