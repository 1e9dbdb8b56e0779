package bridge

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestClaimErrorLeavesTheSettle shows that a settle succeeds although its claim is refused: without a right, for a queue that
// doesn't exist, or for a queue that can't have the lease.
func TestClaimErrorLeavesTheSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(&apart{Backend: memory.New()})
		o.Queues = map[string]Queue{"q": {}, "secret": {}, "held": {}}
		o.Sockets[0].Allow = []Rule{me([]protocol.Op{protocol.OpEnqueue, protocol.OpClaim, protocol.OpAck, protocol.OpNack}, "q", "held", "other")}
		c := start(t, o).dial(t)
		for claim, code := range map[string]string{
			`{"queue":"secret"}`:                  "forbidden",
			`{"queues":["q","secret"]}`:           "forbidden",
			`{"queue":"other"}`:                   "unknown_queue",
			`{"queue":"held","lease_ms":1000000}`: "unsupported",
		} {
			c.call(`{"op":"enqueue","queue":"q"}`)
			r := c.call(`{"op":"ack","lease":%q,"claim":%s}`, c.claim1("q").Lease, claim)
			if r.Acked != 1 || r.ClaimError.Code != code || r.Jobs != nil {
				t.Errorf("%s: got %+v, want acked 1 and claim_error %s", claim, r, code)
			}
		}
	})
}

// TestSettleErrorLeavesTheClaim shows that a claim gets its jobs although the settle that carries it fails.
func TestSettleErrorLeavesTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &apart{Backend: memory.New()}
		c := start(t, options(db)).dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"},{"queue":"q"}]}`)
		j := c.claim1("q")
		for !db.InTx(mustLease(t, j.Lease)) { // until it gets an odd number, whose writes fail
			c.call(`{"op":"nack","lease":%q,"snooze":true,"delay_ms":0}`, j.Lease)
			j = c.claim1("q")
		}
		refused := backends.Refused(errors.New("a trigger rejects it"))
		db.err.Store(&refused)
		if r := c.refused("bad_request", `{"op":"ack","lease":%q,"claim":{"queue":"q"}}`, j.Lease); len(r.Jobs) != 1 {
			t.Errorf("the reply has %d jobs, want 1", len(r.Jobs))
		}
		db.err.Store(nil)
		if r := c.call(`{"op":"ack","lease":%q,"claim":{"queue":"q"}}`, j.Lease); len(r.Jobs) != 1 {
			t.Errorf("the reply has %d jobs, want 1", len(r.Jobs))
		}
	})
}

// TestSettleMakesRoomForItsClaim shows that a connection that holds as many jobs as it can still gets the next job with an ack.
func TestSettleMakesRoomForItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := limited(t, Limits{JobsPerConnection: 1})
		c := s.dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"},{"queue":"q"}]}`)
		j := c.claim1("q")
		for range 2 {
			r := c.call(`{"op":"ack","lease":%q,"claim":{"queue":"q"}}`, j.Lease)
			if len(r.Jobs) != 1 {
				t.Fatalf("the ack returned %+v, want a job", r)
			}
			j = r.Jobs[0]
		}
		if r := c.call(`{"op":"nack","lease":%q,"claim":{"queue":"q"}}`, j.Lease); len(r.Jobs) != 0 || r.Nacked != 1 {
			t.Errorf("the last nack returned %+v", r)
		}
	})
}

// TestHangUpReturnsClaimedJobs shows that the jobs of a settle's claim are released if the client is gone before the reply.
func TestHangUpReturnsClaimedJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c, other := s.dial(t), s.dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"}]}`)
		c.send(`{"op":"ack","lease":%q,"claim":{"queue":"q"}}`, c.claim1("q").Lease)
		c.close()
		if j := other.claim1("q"); j.Lease == "" {
			t.Error("the other connection got no lease")
		}
	})
}

// TestSettledReplyFits shows that a reply with many lost leases and large jobs stays within max_reply.
func TestSettledReplyFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.MaxFrame = 64 << 10
		s := start(t, o)
		storeLarge(t, o.Databases["main"].Backend, 100, strings.Repeat("\x01", 9000), nil)
		c := s.dial(t)
		lost := make([]string, 400)
		for i := range lost {
			lost[i] = `"` + strings.Repeat("x", 100) + strings.Repeat("y", i%10) + string(rune('a'+i%26)) + strings.Repeat("z", i/26) + `"`
		}
		c.send(`{"op":"ack","leases":[%s],"claim":{"queue":"q","max":100}}`, strings.Join(lost, ","))
		if r := c.sized(protocol.NewLimits(o.MaxFrame).MaxReply); len(r.Lost) != len(lost) || len(r.Jobs) == 0 {
			t.Errorf("got %d lost leases and %d jobs", len(r.Lost), len(r.Jobs))
		}
	})
}
