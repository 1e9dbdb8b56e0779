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
	k.join(k, other)
	k.enqueuePayloads("claimed")
	claimed := k.claimOneFor(other, 0)
	k.enqueuePayloads("ready")
	last := backends.Heartbeat{Sidecar: other, Kind: backends.HeartbeatRenew, Name: "test", Timeout: time.Millisecond} // expires soon
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
			if expired.Sidecar == other && expired.Expired {
				return true
			}
		}
		return false
	})
	k.maintain(backends.Maintenance{Suspects: []backends.Suspect{{Sidecar: other, Heartbeats: expired.Heartbeats}}})
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

// CheckNeighbours checks that sidecars of neighbouring schema versions work side by side. old has created the tables, and
// next opens them with a program of the next version, which migrates them while old has a claimed job.
func CheckNeighbours(t *testing.T, old backends.Backend, next func() backends.Backend) {
	t.Helper()
	o := &kit{T: t, Database: &Database{Backend: old}}
	o.join(old, me)
	o.enqueuePayloads("claimed", "ready")
	held := o.onlyJob(o.claimBatch(me, 1, 0, policy("q")))
	n := &kit{T: t, Database: &Database{Backend: next()}}
	if peers := n.join(n.Backend, other).Peers; len(peers) != 1 || peers[0].Sidecar != me || n.Info().Database != old.Info().Database {
		t.Errorf("the next version is on %+v, and sees the peers %+v", n.Info(), peers)
	}
	if r := o.heartbeat(old, me, backends.HeartbeatRenew); !r.Alive {
		t.Errorf("the old version is dead: %+v", r)
	}
	n.enqueuePayloads("later")
	o.writeLosing(backends.Ack{Leases: leasesOf(held)}, 0)
	jobs := n.commit(n.claimBatch(other, 1, 0, policy("q"))).Claims[0].Jobs
	n.wantJobs(jobs, "ready")
	jobs = slices.Concat(jobs, o.claim(2))
	o.wantJobs(jobs, "ready", "later")
	n.writeLosing(backends.Nack{Leases: leasesOf(jobs[0]), Error: "again"}, 0)
	o.writeLosing(backends.Ack{Leases: leasesOf(jobs[1])}, 0)
	o.wantState(jobs[0].ID, backends.StateScheduled)
	n.wantState(jobs[1].ID, backends.StateDeleted)
}
