package backendtest

import (
	"slices"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
)

// CheckNeighbours checks that sidecars of neighbouring schema versions work side by side. old has created the tables, and
// next opens them with a program of the next version, which migrates them while old has a claimed job.
func CheckNeighbours(t *testing.T, old backends.Backend, next func() backends.Backend) {
	t.Helper()
	o := &kit{T: t, Database: &Database{Backend: old}}
	o.join(old, me)
	o.enqueuePayloads("claimed", "ready")
	held := o.onlyJob(o.claimBatch(me, 1, 0, policy("q")))
	n := &kit{T: t, Database: &Database{Backend: next()}}
	if peers := n.join(n.Backend, other).Peers; len(peers) != 1 || peers[0].Host != me || n.Info().Database != old.Info().Database {
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
