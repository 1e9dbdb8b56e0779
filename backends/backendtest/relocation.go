package backendtest

import (
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// CheckRelocation checks the jobs of a database that is copied, restored or moved while a sidecar
// has claimed some of them. move closes source, copies it to another location and opens it there.
func CheckRelocation(t *testing.T, source backends.Backend, move func() backends.Backend) {
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
	heartbeat := func(b backends.Backend, host backends.Identity, kind backends.HeartbeatKind, lease time.Duration) backends.HeartbeatResult {
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
	heartbeat(source, other, backends.HeartbeatJoin, time.Hour)
	put(source, "claimed")
	claimed := claim(source, other)
	if len(claimed) != 1 {
		t.Fatalf("claimed %d jobs, want 1", len(claimed))
	}
	put(source, "ready")
	heartbeat(source, other, backends.HeartbeatRenew, time.Millisecond) // its last heartbeat expires soon

	b := move()
	heartbeat(b, me, backends.HeartbeatJoin, time.Hour)
	if jobs := claim(b, me); len(jobs) != 1 || string(jobs[0].Payload) != "ready" || jobs[0].Attempt != 1 {
		t.Fatalf("first claim: %+v, want only the ready job", jobs)
	}
	var gone backends.Peer
	testwait.Until(t, "the sidecar with the claims expires", func() bool {
		peers := heartbeat(b, me, backends.HeartbeatRenew, time.Hour).Peers
		at := slices.IndexFunc(peers, func(p backends.Peer) bool { return p.Host == other && p.Expired })
		if at >= 0 {
			gone = peers[at]
		}
		return at >= 0
	})
	if _, err := b.Maintain(ctx, backends.Maintenance{Limit: 10, Suspects: []backends.Suspect{{Host: other, Heartbeats: gone.Heartbeats}}}); err != nil {
		t.Fatal(err)
	}
	// A policy's back-off can delay it.
	var again []backends.Job
	testwait.Until(t, "the claimed job is ready again", func() bool {
		if _, err := b.Maintain(ctx, backends.Maintenance{Limit: 10}); err != nil {
			t.Fatal(err)
		}
		again = claim(b, me)
		return len(again) > 0
	})
	if j := again[0]; string(j.Payload) != "claimed" || j.Attempt != 2 || j.ID != claimed[0].ID {
		t.Errorf("second delivery: %+v", j)
	}
	if r := commit(b, backends.Batch{Writes: []backends.Write{backends.Ack{Leases: []backends.Lease{claimed[0].Lease()}}}}); len(r.Writes[0].Lost) != 1 {
		t.Errorf("the old lease settles the job: %+v", r.Writes[0])
	}
}
