package mysql

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestUnsentPacket checks that a packet that the server would not accept changes nothing of what the sidecar assumes about the session.
// Otherwise later commits wait for another program's locks for five seconds instead of one.
func TestUnsentPacket(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s := open(t, Options{URL: m.URL(m.Database(t))})
		s.dialer.Config.MaxAllowedPacket = 1 << 20
		s.pool.Retire()
		join(t, s, 1)
		write(t, s, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}})
		jobs := claimJobs(t, s, 1, 1, 1)
		if _, err := s.Commit(t.Context(), backends.Batch{Writes: []backends.Write{
			backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: make([]byte, 2<<20)}}},
			backends.Ack{Leases: leasesOf(jobs)},
		}}); !backends.IsRefused(err) {
			t.Fatal(err)
		}
		c, err := s.pool.Take(t.Context(), &s.Meter)
		if err != nil {
			t.Fatal(err)
		}
		defer s.pool.Put(c)
		n, err := c.Number(t.Context(), "SELECT @@SESSION.innodb_lock_wait_timeout")
		if got := time.Duration(n) * time.Second; err != nil || got != c.Wait {
			t.Errorf("the session waits for %v, and the sidecar assumes %v; %v", got, c.Wait, err)
		}
	})
}
