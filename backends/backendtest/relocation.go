package backendtest

import (
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
	k.join(k, other)
	k.enqueuePayloads("claimed")
	claimed := k.claimOneFor(other, 0)
	k.enqueuePayloads("ready")
	last := backends.Heartbeat{Host: other, Kind: backends.HeartbeatRenew, Name: "test", Timeout: time.Millisecond} // expires soon
	if _, err := k.Heartbeat(t.Context(), last); err != nil {
		t.Fatal(err)
	}

	k.Backend = move()
	k.join(k, me)
	if jobs := k.claim(5); len(jobs) != 1 || string(jobs[0].Payload) != "ready" || jobs[0].Attempt != 1 {
		t.Fatalf("first claim: %+v, want only the ready job", jobs)
	}
	var expired backends.Peer
	testwait.Until(t, "the sidecar with the claims expires", func() bool {
		for _, expired = range k.heartbeat(k, me, backends.HeartbeatRenew).Peers {
			if expired.Host == other && expired.Expired {
				return true
			}
		}
		return false
	})
	k.maintain(backends.Maintenance{Suspects: []backends.Suspect{{Host: other, Heartbeats: expired.Heartbeats}}})
	// A policy's back-off can delay it.
	var again []backends.Job
	testwait.Until(t, "the claimed job is ready again", func() bool {
		k.maintain(backends.Maintenance{})
		again = k.claim(5)
		return len(again) > 0
	})
	if j := again[0]; string(j.Payload) != "claimed" || j.Attempt != 2 || j.ID != claimed.ID {
		t.Errorf("second delivery: %+v", j)
	}
	k.writeLosing(backends.Ack{Leases: leasesOf(claimed)}, 1)
}
