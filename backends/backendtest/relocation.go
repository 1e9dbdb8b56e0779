package backendtest

import (
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Moved checks what becomes of jobs when a database is copied, restored or moved while a sidecar
// has some of them claimed. move closes source, carries it elsewhere and opens it there.
func Moved(t *testing.T, source backends.Backend, move func() backends.Backend) {
	t.Helper()
	ctx := t.Context()
	commit := func(b backends.Backend, batch backends.Batch) backends.Results {
		t.Helper()
		r, err := b.Commit(ctx, batch)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	number := uint64(0)
	claim := func(b backends.Backend, host backends.Identity) []backends.Job {
		t.Helper()
		c := backends.Claim{Queues: []backends.Policy{policy("q")}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}
		for range 5 {
			number++
			c.Slots = append(c.Slots, backends.Slot{Token: backends.Token{Host: host, Number: number}, Worker: "w"})
		}
		return commit(b, backends.Batch{Host: host, Claims: []backends.Claim{c}}).Claims[0].Jobs
	}
	beat := func(b backends.Backend, host backends.Identity, kind backends.HeartbeatKind, lease time.Duration) backends.HeartbeatResult {
		t.Helper()
		p, err := b.Heartbeat(ctx, backends.Heartbeat{Host: host, Kind: kind, Name: "test", Timeout: lease})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	put := func(b backends.Backend, payload string) {
		commit(b, backends.Batch{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: []byte(payload)}}}}})
	}
	beat(source, other, backends.HeartbeatJoin, time.Hour)
	put(source, "claimed")
	held := claim(source, other)
	if len(held) != 1 {
		t.Fatalf("%d jobs are claimed", len(held))
	}
	put(source, "ready")
	beat(source, other, backends.HeartbeatRenew, time.Millisecond) // its last one: soon it has expired

	b := move()
	beat(b, me, backends.HeartbeatJoin, time.Hour)
	if jobs := claim(b, me); len(jobs) != 1 || string(jobs[0].Payload) != "ready" || jobs[0].Attempt != 1 {
		t.Fatalf("at first it gives out %+v", jobs)
	}
	var gone backends.Peer
	testwait.Until(t, "the sidecar that had the jobs has expired", func() bool {
		peers := beat(b, me, backends.HeartbeatRenew, time.Hour).Peers
		at := slices.IndexFunc(peers, func(p backends.Peer) bool { return p.Host == other && p.Expired })
		if at >= 0 {
			gone = peers[at]
		}
		return at >= 0
	})
	if _, err := b.Maintain(ctx, backends.Maintenance{Limit: 10, Suspects: []backends.Suspect{{Host: other, Heartbeats: gone.Heartbeats}}}); err != nil {
		t.Fatal(err)
	}
	// A policy's back-off may hold it for a moment.
	var again []backends.Job
	testwait.Until(t, "the claimed job comes again", func() bool {
		if _, err := b.Maintain(ctx, backends.Maintenance{Limit: 10}); err != nil {
			t.Fatal(err)
		}
		again = claim(b, me)
		return len(again) > 0
	})
	if j := again[0]; string(j.Payload) != "claimed" || j.Attempt != 2 || j.ID != held[0].ID {
		t.Errorf("it comes again as %+v", j)
	}
	if r := commit(b, backends.Batch{Writes: []backends.Write{backends.Ack{Leases: []backends.Lease{held[0].Lease()}}}}); len(r.Writes[0].Lost) != 1 {
		t.Errorf("the lease from before settles it: %+v", r.Writes[0])
	}
}
