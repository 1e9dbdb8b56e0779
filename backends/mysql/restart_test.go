package mysql

import (
	"errors"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestARestartThatLostAQueue checks a server that starts with older files, without the row of a queue that the sidecar has registered. A
// crash can lose the row in the same way, if the server doesn't sync each commit.
func TestARestartThatLostAQueue(t *testing.T) {
	ownServers(t, func(t *testing.T, kind testserver.Kind) {
		ctx := testwait.Context(t)
		m, err := testserver.StartMySQL(ctx, kind, testserver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Stop(); err != nil {
				t.Error(err)
			}
		})
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		if err := errors.Join(m.Halt(), m.Snapshot(), m.Restart(ctx)); err != nil {
			t.Fatal(err)
		}
		schedule := func() error {
			_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Delay: time.Hour}}}}})
			return err
		}
		testwait.Until(t, "a job is stored", func() bool { return schedule() == nil })
		if err := errors.Join(m.Halt(), m.RollBack(), m.Restart(ctx)); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "a job is stored after the restart", func() bool { return schedule() == nil })
		if r, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10}); err != nil || r.Next <= 0 {
			t.Errorf("the next promotion is in %v, %v", r.Next, err)
		}
	})
}
