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
	k := &kit{T: t, Database: &Database{Backend: source}}
	heartbeat := func(host backends.Identity, kind backends.HeartbeatKind, timeout time.Duration) []backends.Peer {
		t.Helper()
		r, err := k.Heartbeat(t.Context(), backends.Heartbeat{Host: host, Kind: kind, Name: "test", Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		return r.Peers
	}
	claim := func(host backends.Identity) []backends.Job {
		t.Helper()
		return k.commit(k.claimBatch(host, 5, 0, policy("q"))).Claims[0].Jobs
	}
	heartbeat(other, backends.HeartbeatJoin, time.Hour)
	k.enqueuePayloads("claimed")
	claimed := claim(other)
	if len(claimed) != 1 {
		t.Fatalf("claimed %d jobs, want 1", len(claimed))
	}
	k.enqueuePayloads("ready")
	heartbeat(other, backends.HeartbeatRenew, time.Millisecond) // its last heartbeat expires soon

	k.Backend = move()
	heartbeat(me, backends.HeartbeatJoin, time.Hour)
	if jobs := claim(me); len(jobs) != 1 || string(jobs[0].Payload) != "ready" || jobs[0].Attempt != 1 {
		t.Fatalf("first claim: %+v, want only the ready job", jobs)
	}
	var expired backends.Peer
	testwait.Until(t, "the sidecar with the claims expires", func() bool {
		peers := heartbeat(me, backends.HeartbeatRenew, time.Hour)
		at := slices.IndexFunc(peers, func(p backends.Peer) bool { return p.Host == other && p.Expired })
		if at >= 0 {
			expired = peers[at]
		}
		return at >= 0
	})
	k.maintain(backends.Maintenance{Suspects: []backends.Suspect{{Host: other, Heartbeats: expired.Heartbeats}}})
	// A policy's back-off can delay it.
	var again []backends.Job
	testwait.Until(t, "the claimed job is ready again", func() bool {
		k.maintain(backends.Maintenance{})
		again = claim(me)
		return len(again) > 0
	})
	if j := again[0]; string(j.Payload) != "claimed" || j.Attempt != 2 || j.ID != claimed[0].ID {
		t.Errorf("second delivery: %+v", j)
	}
	k.writeLosing(backends.Ack{Leases: []backends.Lease{claimed[0].Lease()}}, 1)
}
