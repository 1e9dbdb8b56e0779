package bridge

import (
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestForgedJobIsNotForgotten shows that an ack with a claim's token and another job's id is lost, and that the
// session keeps the claim. Before, the claim was forgotten, and its job released as one without a record.
func TestForgedJobIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		j := c.claim1("q")
		c.refused("lease_lost", `{"op":"ack","lease":%q}`, j.Lease+"7")
		if n := s.held(); n != 1 {
			t.Errorf("after a forged ack the connection holds %d jobs, want 1", n)
		}
		c.call(`{"op":"ack","lease":%q}`, j.Lease)
		if n := s.held(); n != 0 {
			t.Errorf("after its ack it holds %d", n)
		}
	})
}

// TestForgedBindTakesNothing shows that an extend that would bind a claim's token under another job's id is lost, and
// that the session keeps the claim. Before, the claim was forgotten, and its job released while the worker ran it.
func TestForgedBindTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c, other := s.dial(t), s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		j := c.claim1("q")
		for _, d := range []*client{other, c} {
			d.refused("lease_lost", `{"op":"extend","lease":%q,"bind":true}`, j.Lease+"7")
			if n := s.held(); n != 1 {
				t.Errorf("after a forged bind the connection holds %d jobs, want 1", n)
			}
		}
		other.conn.Close()
		c.call(`{"op":"ack","lease":%q}`, j.Lease)
		if n := s.held(); n != 0 {
			t.Errorf("after its ack it holds %d", n)
		}
	})
}

// TestOldLeaseTakesNothing shows that a settle or bind by an old lease is lost, and that the session that has the job
// now keeps it.
func TestOldLeaseTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		before, now := s.dial(t), s.dial(t)
		before.call(`{"op":"enqueue","queue":"q"}`)
		old := before.claim1("q")
		now.call(`{"op":"reclaim","queue":"q","ids":[%q]}`, old.ID)
		j := now.claim1("q")
		for _, request := range []string{
			`{"op":"ack","lease":%q}`, `{"op":"nack","lease":%q}`, `{"op":"extend","lease":%q}`,
			`{"op":"extend","lease":%q,"bind":true}`, `{"op":"extend","lease":%q,"lease_ms":60000}`,
		} {
			before.refused("lease_lost", request, old.Lease)
		}
		before.close()
		synctest.Wait()
		if q := now.call(`{"op":"stats","queue":"q"}`).Queues[0]; q["claimed"] != 1.0 {
			t.Errorf("after the old worker's end: %v", q)
		}
		now.close()
		if again := s.dial(t).claim1("q"); again.ID != j.ID || again.Attempt != 2 {
			t.Errorf("after the new worker's end: %+v, want job %s, attempt 2", again, j.ID)
		}
	})
}
