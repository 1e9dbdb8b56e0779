package backendtest

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// emptied are the tests of another program that empties a table beside the jobs, as the clean-up of a test suite does: the jobs stay
// deliverable. Each runs with the Backend open, and then on one that is opened afterwards.
func emptied(t *testing.T, open func(t *testing.T) *Database) {
	for _, table := range open(t).SmallTables {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			k := &kit{T: t, Database: open(t)}
			k.join(k.Backend, me)
			k.afterEmptied(table)
		})
	}
}

// afterEmptied empties a table, and works on each job that was stored before.
func (k *kit) afterEmptied(table string) {
	k.enqueuePayloads("acked", "nacked", "kept")
	k.enqueueKey("k", "", "")
	failed := k.claim(2)
	k.write(backends.Nack{Leases: leasesOf(failed...), Error: "x", HasDelay: true, Delay: time.Second})
	k.AdvanceClock(2 * time.Second)
	k.maintain(backends.Maintenance{})
	held := k.claim(1)
	k.enqueue(backends.NewJob{Queue: "q", Payload: []byte("later"), Delay: time.Minute})
	k.EmptyTable(table)

	// The sidecar that runs. If it lost its row, it joins again, and what it had claimed is free.
	sidecar := me
	if p := k.heartbeat(k, me, backends.HeartbeatRenew); !p.Alive {
		sidecar++
		if p = k.heartbeat(k, sidecar, backends.HeartbeatJoin); !p.Alive {
			k.Fatal("the sidecar can't join again")
		}
	}
	k.AdvanceClock(2 * time.Minute)
	k.heartbeat(k, sidecar, backends.HeartbeatRenew)
	if r := k.write(backends.Ack{Leases: leasesOf(held...)}); len(r.Lost) > 0 && sidecar == me {
		k.Errorf("the lease of a sidecar that is alive is lost")
	}
	k.deliversAll(k.Backend, sidecar, 4)
	k.enqueuePayloads("new")
	k.enqueueKey("other", "", "")
	k.deliversAll(k.Backend, sidecar, 2)

	// One that starts afterwards.
	k.enqueuePayloads("last")
	b := k.OpenAnother()
	k.join(b, other)
	k.deliversAll(b, other, 1)
}

// deliversAll waits until a sidecar has claimed and acked at least n jobs, and none is left.
func (k *kit) deliversAll(b backends.Backend, sidecar backends.Identity, n int) {
	k.Helper()
	got := map[string]bool{}
	testwait.Until(k, "all jobs are delivered", func() bool {
		if _, err := b.Maintain(k.Context(), backends.Maintenance{Limit: 100, Prune: true, Waiting: []string{"q"}}); err != nil {
			k.Fatalf("maintain: %v", err)
		}
		r, err := b.Commit(k.Context(), k.claimBatch(sidecar, 10, 0, policy("q")))
		if err != nil {
			k.Fatalf("claim: %v", err)
		}
		if jobs := r.Claims[0].Jobs; len(jobs) > 0 {
			if r, err := b.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(jobs...)}}}); err != nil || len(r.Writes[0].Lost) > 0 {
				k.Fatalf("ack: %+v, %v", r, err)
			}
			for _, j := range jobs {
				got[j.ID] = true
			}
		}
		return len(got) >= n
	})
}
