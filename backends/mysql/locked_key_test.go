package mysql

import (
	"errors"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestKeyInAnOpenTransaction checks a commit with a key that an application has stored in a transaction
// that is still open. The commit does not wait for that transaction to end, and stores nothing.
func TestKeyInAnOpenTransaction(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		c := connect(t, m, name)
		runSQL(t, c, "BEGIN", "INSERT INTO qsidecar_keys (queue, `key`, job, expires_at) VALUES ('q', 'k', 7, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)")
		b := backends.CommitContent{Writes: []backends.Write{
			backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Key: "k"}}},
		}}
		ctx := testwait.Context(t)
		for _, b.WaitForLocks = range []bool{false, true} {
			var locked *backends.LockedError
			if _, err := s.Commit(ctx, b); !errors.As(err, &locked) {
				t.Errorf("waiting alone %v: %v, want a LockedError", b.WaitForLocks, err)
			}
		}
		runSQL(t, c, "COMMIT")
		if r, err := s.Commit(ctx, b); err != nil || r.Writes[0].Stored[0].Duplicate || !r.Writes[1].Stored[0].Duplicate {
			t.Errorf("%+v, %v", r, err)
		}
		if n := numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_jobs"); n != 1 {
			t.Errorf("%d jobs are stored, want 1", n)
		}
	})
}
