package mysql

import (
	"errors"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
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
					_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}})
					return err
				},
				func() error {
					jobs := claimJobs(t, s, host, 1, uint64(10*i+1))
					if len(jobs) != 1 {
						t.Fatalf("%s: claimed %v, want one job", change, jobs)
					}
					must(t, m, name, change)
					r, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(jobs)}}})
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

// TestFilesRestoredInACommit: the reply to a COMMIT is lost, the server starts with the files of an earlier clean shutdown,
// and another Store commits. The commit is reported as lost, which it is, because no other Store uses its row of qsidecar_commits.
func TestFilesRestoredInACommit(t *testing.T) {
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
		s, other := open(t, Options{URL: m.URL(name)}), open(t, Options{URL: m.URL(name)})
		if err := errors.Join(enqueue(t, s), enqueue(t, other), m.Halt(), m.Snapshot(), m.Restart(ctx)); err != nil {
			t.Fatal(err)
		}
		stored := func(s *Store) {
			testwait.Until(t, "a job is stored", func() bool { return enqueue(t, s) == nil })
		}
		stored(s)
		restore := func(c *session.Conn, before bool) {
			if before {
				return
			}
			s.fault.Store(nil)
			c.Bad = true
			if err := errors.Join(m.Halt(), m.RollBack(), m.Restart(ctx)); err != nil {
				t.Error(err)
			}
			stored(other)
		}
		s.fault.Store(&restore)
		if err := enqueue(t, s); !backends.Retryable(err) || errors.Is(err, backends.ErrUnknownOutcome) {
			t.Errorf("%v, want unavailable", err)
		}
		stored(s)
		if n := numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_jobs"); n != 4 {
			t.Errorf("%d jobs, want 2 of the snapshot and 2 stored after its restore", n)
		}
	})
}
