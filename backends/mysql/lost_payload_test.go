package mysql

import (
	"net"
	"sync/atomic"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestLostPayload checks a claim that was committed, although the reply to its COMMIT got lost. A large payload, which the claim reads in a
// statement of its own, isn't lost with it.
func TestLostPayload(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		var armed atomic.Pointer[func()]
		s := open(t, Options{URL: m.URL(name), wrap: func(c net.Conn) net.Conn { return losesReply{c, &armed} }})
		join(t, s, 1)
		write(t, s, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: make([]byte, 100_000)}}})
		committed := func() {
			testwait.Until(t, "the job is claimed", func() bool {
				return numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_jobs WHERE state = 'claimed'") == 1
			})
		}
		hook := func(_ *session.Conn, before bool) {
			if before {
				s.fault.Store(nil)
				armed.Store(&committed)
			}
		}
		s.fault.Store(&hook)
		r, err := s.Commit(t.Context(), claimOf(1, 1000, 1))
		if err != nil {
			t.Fatal(err)
		}
		if jobs := r.Claims[0].Jobs; len(jobs) != 1 || len(jobs[0].Payload) != 100_000 {
			t.Errorf("%d jobs, %d bytes of payload in the first, want 1 job with 100000", len(jobs), len(jobs[0].Payload))
		}
	})
}
