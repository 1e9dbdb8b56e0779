package mysql

import (
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestCommitNumberOutOfStep changes the numbers of the last commits as a failover that lost commits, or the restore of
// a backup, does. All operations go on.
func TestCommitNumberOutOfStep(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name), MaxConnections: 3})
		const host = backends.Identity(1)
		join(t, s, host)
		for i, change := range []string{
			"UPDATE qsidecar_commits SET number = GREATEST(number, 1) - 1",
			"UPDATE qsidecar_commits SET number = 0",
			"UPDATE qsidecar_commits SET number = number + 5",
			"DELETE FROM qsidecar_commits",
		} {
			for step, f := range []func() error{
				func() error {
					_, err := s.Commit(t.Context(), backends.Batch{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}})
					return err
				},
				func() error {
					jobs := claimJobs(t, s, host, 1, uint64(10*i+1))
					if len(jobs) != 1 {
						t.Fatalf("%s: claimed %v, want one job", change, jobs)
					}
					must(t, m, name, change)
					r, err := s.Commit(t.Context(), backends.Batch{Writes: []backends.Write{backends.Ack{Leases: leasesOf(jobs)}}})
					if err == nil && len(r.Writes[0].Lost) > 0 {
						t.Errorf("%s: the ack lost %v", change, r.Writes[0].Lost)
					}
					return err
				},
			} {
				must(t, m, name, change)
				if err := f(); err != nil {
					t.Errorf("after %s, step %d: %v", change, step, err)
				}
			}
		}
		if n := numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_jobs"); n != 0 {
			t.Errorf("%d jobs are left, want none", n)
		}
	})
}
