package mysql

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestUnsentPacket checks that a packet that the server would not accept changes nothing of what the sidecar assumes about the session.
// Otherwise later commits wait for another program's locks for five seconds instead of one.
func TestUnsentPacket(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s := open(t, Options{URL: m.URL(m.Database(t)), packet: 1 << 20})
		join(t, s, 1)
		write(t, s, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}})
		jobs := claimJobs(t, s, 1, 1, 1)
		if _, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{
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

// TestPacketLimitChanges: max_allowed_packet is that of the present server and setting, without a restart of the sidecar. An open
// transaction keeps its session, so there the new limit holds from the next one on.
func TestPacketLimitChanges(t *testing.T) {
	ownServers(t, func(t *testing.T, kind testserver.Kind) {
		m, err := testserver.StartMySQL(t.Context(), kind, testserver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Stop(); err != nil {
				t.Error(err)
			}
		})
		name := m.Database(t)
		must(t, m, name, "CREATE TABLE q (id int PRIMARY KEY, n int)", "INSERT INTO q VALUES (1, 0)")
		s := open(t, Options{URL: m.URL(name)})
		join(t, s, 1)
		enqueue := backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: make([]byte, 2<<20)}}}}}
		stored := func(when string, tx backends.OpenTx) {
			t.Helper()
			var err error
			if tx != nil {
				_, err = tx.CommitWith(t.Context(), enqueue, backends.TxHooks{})
			} else {
				_, err = s.Commit(t.Context(), enqueue)
			}
			if err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		refused := func(when string) {
			t.Helper()
			if _, err := s.Commit(t.Context(), enqueue); !backends.IsRefused(err) || !strings.Contains(err.Error(), "max_allowed_packet") {
				t.Errorf("%s: %v, want a refusal", when, err)
			}
		}
		stored("at first", nil)
		must(t, m, name, "SET GLOBAL max_allowed_packet = 1048576")
		cut := func() {
			ids, err := m.Connections(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				if err := m.Kill(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
		}
		cut() // as at a failover to a server with a lower limit
		refused("on a server with a lower limit")
		h := lock(t, s)
		must(t, m, name, "SET GLOBAL max_allowed_packet = 67108864")
		stored("after the limit was raised", nil)
		if _, err := h.CommitWith(t.Context(), enqueue, backends.TxHooks{}); !backends.IsRefused(err) || !h.Open() {
			t.Errorf("in a transaction that began before: %v, want a refusal, and that it stays open", err)
		}
		if err := h.Rollback(t.Context()); !errors.Is(err, backends.ErrTxLost) {
			t.Errorf("its connection would be used again: %v", err)
		}
		h = lock(t, s)
		stored("in the next one", h)
		must(t, m, name, "SET GLOBAL max_allowed_packet = 1048576")
		join(t, s, 2) // a heartbeat finds it out
		refused("after a heartbeat noticed the lower limit")
	})
}
