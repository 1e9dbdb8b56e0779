package bridge

import (
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestSettleInTwoDatabases shows a settle in two databases, one of which is unreachable. The leases that the other
// one committed are settled, also in the sidecar's lease table, and the reply does not claim that nothing was
// written.
func TestSettleInTwoDatabases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := &faulty{Backend: memory.New()}
		o := options(away)
		o.Databases["other"] = Database{Backend: newAddress("CCCCCCCCCCC")}
		o.Queues = map[string]Queue{"a": {Database: "main"}, "b": {Database: "other"}}
		s := start(t, o)
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"a"}`)
		c.call(`{"op":"enqueue","jobs":[{"queue":"b"},{"queue":"b"}]}`)
		a, b1, b2 := c.claim1("a").Lease, c.claim1("b").Lease, c.claim1("b").Lease
		away.commit.Store(&errDown)
		held := func() int { return s.config.Load().byName["other"].HeldBySessions() }
		c.refused("unknown_outcome", `{"op":"ack","leases":[%q,%q]}`, a, b1)
		if held() != 1 {
			t.Errorf("the sidecar believes that %d jobs are held in the other database, want 1", held())
		}
		c.refused("unknown_outcome", `{"op":"nack","leases":[%q,%q]}`, b2, a)
		if held() != 0 {
			t.Errorf("the sidecar believes that %d jobs are held in the other database, want none", held())
		}
		c.refused("unavailable", `{"op":"ack","leases":[%q,%q]}`, b1, a) // b1 is lost: nothing was written
		away.commit.Store(nil)
		if r := c.call(`{"op":"ack","leases":[%q,%q]}`, a, b1); r.Acked != 1 || len(r.Lost) != 1 {
			t.Errorf("sent again: %+v", r)
		}
	})
}
