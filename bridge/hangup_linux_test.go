package bridge

import (
	"testing"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestUnixHangUps shows that the kernel distinguishes a client that is gone from one that only ended its input, even
// while its request waits and nothing reads from the connection.
func TestUnixHangUps(t *testing.T) {
	db := memory.New()
	s := start(t, unixOptions(t, db))
	store(t, db, "held")
	holder, waits, ends, other := s.dial(t), s.dial(t), s.dial(t), s.dial(t)
	j := holder.claim1("held")
	holder.close()
	if again := other.claim1("held"); again.ID != j.ID || again.Attempt != 2 {
		t.Errorf("after the hang-up of its worker: %+v, want job %s, attempt 2", again, j.ID)
	}

	idle := func() int { return s.pipeline().Snapshot().IdleClaims }
	waits.send(`{"op":"claim","queue":"q","wait_ms":3600000}`) // without an id: nothing is read until its reply
	ends.send(`{"op":"claim","queue":"q","wait_ms":3600000}`)
	eventually(t, func() bool { return idle() == 2 })
	waits.close()
	eventually(t, func() bool { return idle() == 1 })
	if err := ends.conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	other.call(`{"op":"ping"}`)
	store(t, db, "q") // maintenance finds it
	if r := ends.receive(); len(r.Jobs) != 1 {
		t.Errorf("a claim that waited, and whose client ended its input, was answered %+v", r)
	}
}

// TestUnixPeers shows that the kernel reports the user of a connection.
func TestUnixPeers(t *testing.T) {
	o := unixOptions(t, memory.New())
	o.Sockets[0].Allow = []Rule{me([]protocol.Op{protocol.OpPing}), {Users: []uint32{4_000_000_000}}}
	s := start(t, o)
	c := s.dial(t)
	c.call(`{"op":"ping"}`)
	c.refused("forbidden", `{"op":"stats"}`)
}
