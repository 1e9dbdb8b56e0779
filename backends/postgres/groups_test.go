package postgres

import (
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestAdmissionCountsAfterItsLock lets an admission wait for another one of the group. If it counted with the snapshot from before
// the wait, both would give the only slot away.
func TestAdmissionCountsAfterItsLock(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := p.Database(t)
		first, second := open(t, Options{URL: url}), open(t, Options{URL: url})
		enqueue := func(s *Store, priority int16) {
			w := backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Group: "a", Priority: priority}}}
			r, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{w}})
			if err != nil {
				t.Error(err)
			}
			s.Admit(t.Context(), r.Groups)
		}
		done := make(chan struct{})
		first.beforeCommit(func() { // the commit that stores the job
			first.beforeCommit(func() { // its admission
				go func() {
					defer close(done)
					enqueue(second, 5)
				}()
				testwait.Until(t, "the other admission waits, or has given up", func() bool {
					select {
					case <-done:
						return true
					default:
					}
					var waits bool
					if err := first.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits); err != nil {
						t.Error(err)
						return true
					}
					return waits
				})
			})
		})
		enqueue(first, 0)
		testwait.Closed(t, "the other enqueue", done)
		st, err := first.Stats(t.Context(), "q")
		if err != nil || st[0].Ready != 1 || st[0].Blocked != 1 {
			t.Errorf("the statistics are %+v, %v: want one job ready and one blocked", st, err)
		}
	})
}
