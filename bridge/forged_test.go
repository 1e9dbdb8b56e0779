package bridge

import (
	"testing"

	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestForgedJobIsNotForgotten: an ack with a claim's token and another job's id is lost, and
// the claim stays its session's. It was forgotten, and given back as one nobody knows of.
func TestForgedJobIsNotForgotten(t *testing.T) {
	s := start(t, options(t, memory.New()))
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
}
