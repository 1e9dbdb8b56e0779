package backendtest

import (
	"errors"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// retained is a job of "q" that is kept at least that long when it is done.
func retained(payload string, d time.Duration) backends.NewJob {
	return backends.NewJob{Queue: "q", Payload: []byte(payload), Retain: d}
}

// retains reports whether jobs of the engine can have a retention of their own. If they can't, the error has the reason.
func (k *kit) retains() bool {
	k.Helper()
	r, err := k.Commit(k.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "p", Retain: time.Hour}}}}})
	u, ok := errors.AsType[*backends.UnsupportedError](err)
	switch {
	case ok && (!u.NoRetain || u.Queue != "p"):
		k.Fatalf("an engine whose jobs have no retention of their own answers %v", err)
	case err != nil && !ok:
		k.Fatal(err)
	case !ok:
		k.operate(backends.Command{Kind: backends.Delete, Queue: "p", IDs: []string{r.Writes[0].Stored[0].ID}}, 1, false)
	}
	return !ok
}

var ownRetentionTests = map[string]func(*kit){
	"KeepsADoneJob": func(k *kit) {
		keyedJob, grouped := retained("keyed", time.Minute), retained("first", time.Minute)
		keyedJob.Key, keyedJob.KeyTTL = "k", time.Hour
		if k.hasGroups() {
			grouped.Group = "g"
		}
		ids := k.enqueue(retained("a", time.Minute), backends.NewJob{Queue: "q", Payload: []byte("plain")}, keyedJob, grouped, retained("b", time.Minute))
		k.maintain(backends.Maintenance{})
		jobs := k.claim(9)
		if len(jobs) != len(ids) {
			k.Fatalf("claimed %d of %d jobs", len(jobs), len(ids))
		}
		for _, j := range jobs[:4] {
			k.writeLosing(backends.Ack{Leases: leasesOf(j), Result: []byte("result of " + string(j.Payload))}, 0)
		}
		k.writeLosing(backends.Ack{Leases: leasesOf(jobs[4:]...)}, 0)
		for i, id := range ids {
			want := backends.StateDone
			if i == 1 {
				want = backends.StateDeleted
			}
			k.wantState(id, want)
		}
		if v := k.view(ids[0]); string(v.Result) != "result of a" || v.FinishedAt.IsZero() {
			k.Errorf("shown as %+v", v)
		}
		k.wantPruned(59*time.Second, 0)
		k.wantPruned(time.Second, 4)
		k.wantState(ids[0], backends.StateDeleted)
	},
	"TheLongerRetentionCounts": func(k *kit) {
		keep := policy("q")
		keep.RetainDone = time.Hour
		ids := k.enqueue(retained("short", time.Minute), retained("long", 2*time.Hour))
		jobs := k.commit(k.claimBatch(me, 2, 0, keep)).Claims[0].Jobs
		k.writeLosing(backends.Ack{Leases: leasesOf(jobs...)}, 0)
		k.wantPruned(59*time.Minute, 0)
		k.wantPruned(time.Minute, 1)
		k.wantState(ids[0], backends.StateDeleted)
		k.wantPruned(time.Hour, 1)
	},
	"SurvivesRetries": func(k *kit) {
		id := k.enqueue(retained("a", time.Minute))[0]
		keep := policy("q")
		keep.RetainDone = time.Hour
		k.writeLosing(backends.Nack{Leases: leasesOf(k.commit(k.claimBatch(me, 1, 0, keep)).Claims[0].Jobs...), HasDelay: true}, 0)
		j := k.prefetchOne(me) // under a policy without retention
		k.writeLosing(handedOut(j, 0), 0)
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0)
		k.wantState(id, backends.StateDone)
		k.wantPruned(time.Minute, 1)
	},
	"DeadJobsFollowTheQueue": func(k *kit) {
		id := k.enqueue(retained("a", time.Minute))[0]
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claimOne()), Dead: true}, 0)
		k.wantPruned(23*time.Hour, 0)
		k.wantState(id, backends.StateDead)
	},
	"APlainINSERT": func(k *kit) {
		if k.InsertRow == nil {
			return
		}
		for _, bad := range []string{"0", "-1", "316224000001"} {
			if err := k.InsertRow("retain_ms", bad, false); err == nil {
				k.Errorf("retain_ms %s is stored", bad)
			}
		}
		if err := k.InsertRow("retain_ms", "60000", false); err != nil {
			k.Fatal(err)
		}
		j := k.claimOne()
		k.writeLosing(backends.Ack{Leases: leasesOf(j)}, 0)
		k.wantState(j.ID, backends.StateDone)
	},
}
