package backendtest

import (
	"errors"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// settlesOfJob are the writes about one claimed job.
var settlesOfJob = map[string]func(j backends.Job) backends.Write{
	"Ack": func(j backends.Job) backends.Write { return backends.Ack{Leases: leasesOf(j)} },
	"AckWithFollowUp": func(j backends.Job) backends.Write {
		return backends.Ack{Leases: leasesOf(j), Enqueue: []backends.NewJob{{Queue: "next"}}}
	},
	"Nack":    func(j backends.Job) backends.Write { return backends.Nack{Leases: leasesOf(j), Error: "no"} },
	"Extend":  func(j backends.Job) backends.Write { return backends.Extend{Leases: leasesOf(j), Lease: time.Minute} },
	"Release": func(j backends.Job) backends.Write { return backends.Release{Leases: leasesOf(j), Owner: me} },
	"Deliver": func(j backends.Job) backends.Write {
		return backends.Deliver{Deliveries: []backends.Delivery{{Lease: j.Lease(), Worker: "w"}}}
	},
}

// lockedRowTests check that the row of a claimed job that another program has locked delays no
// other write.
var lockedRowTests = func() map[string]func(*kit) {
	tests := map[string]func(*kit){
		"LockedRowFailsAWriteAlone": func(k *kit) {
			if k.LockRow == nil {
				return
			}
			k.enqueuePayloads("locked")
			j := k.claimOne()
			unlock := k.LockRow(j.ID)
			b := backends.Batch{Writes: []backends.Write{backends.Ack{Leases: leasesOf(j)}}, WaitForLocks: true}
			var locked *backends.LockedError
			if _, err := k.Commit(testwait.Context(k), b); !errors.As(err, &locked) {
				k.Errorf("answered %v, want a LockedError", err)
			}
			unlock()
			k.writeLosing(b.Writes[0], 0)
			k.wantNoneReady()
		},
	}
	for name, settle := range settlesOfJob {
		tests["LockedRowOfOne"+name+"DelaysNoOtherWrite"] = func(k *kit) { k.settleBesideLockedRow(settle) }
	}
	return tests
}()

// settleBesideLockedRow commits a settle of a locked row with other writes and a claim. Only that
// settle fails, and succeeds after the row is unlocked.
func (k *kit) settleBesideLockedRow(settle func(j backends.Job) backends.Write) {
	k.Helper()
	if k.LockRow == nil {
		return
	}
	k.enqueuePayloads("locked", "free 1", "free 2", "free 3", "free 4")
	jobs := k.claim(5)
	if len(jobs) != 5 {
		k.Fatalf("%d of 5 jobs were claimed", len(jobs))
	}
	unlock := k.LockRow(jobs[0].ID)
	for _, free := range [][]backends.Job{jobs[1:3], jobs[3:5]} { // the second commit avoids the row at once
		b := k.claimBatch(me, 1, 0, policy("beside"))
		b.Writes = []backends.Write{
			backends.Enqueue{Jobs: []backends.NewJob{{Queue: "beside"}}},
			backends.Ack{Leases: leasesOf(free[0])},
			settle(jobs[0]),
			backends.Ack{Leases: leasesOf(free[1]), Enqueue: []backends.NewJob{{Queue: "done"}}},
		}
		r, err := k.Commit(testwait.Context(k), b)
		if err != nil {
			k.Fatalf("the commit failed: %v", err)
		}
		for n, w := range r.Writes {
			var locked *backends.LockedError
			if errors.As(w.Err, &locked) != (n == 2) || len(w.Lost) > 0 {
				k.Errorf("write %d: %+v", n, w)
			}
		}
		if k.view(free[0].ID) != nil || k.view(free[1].ID) != nil || len(r.Claims[0].Jobs) != 1 {
			k.Error("the other writes or the claim did not happen")
		}
	}
	unlock()
	if w := k.writeLosing(settle(jobs[0]), 0); w.Err != nil {
		k.Errorf("after the unlock: %v", w.Err)
	}
}
