package backendtest

import (
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// MigratedDatabase is the id that the last preview's tables have in testdata.
const MigratedDatabase = "preview_dbs"

// migratedStates are the states of the last preview's jobs after the requests of CheckMigrated, by id.
var migratedStates = map[string]backends.State{
	"1": backends.StateReady, "2": backends.StateDeleted, "3": backends.StateDead, "4": backends.StateScheduled,
	"5": backends.StateReady, "6": backends.StateDone, "7": backends.StateReady, "8": backends.StateReady,
	"9": backends.StateClaimed, "10": backends.StateReady, "11": backends.StateDead, "12": backends.StateReady,
}

// CheckMigrated checks that the rows of the last preview survived the migration. Each engine's
// testdata stores the same ones: sidecar 7 is alive and sidecar 8 is dead, queue "p" is paused,
// and the payload of each job describes the job.
func CheckMigrated(t *testing.T, b backends.Backend) {
	t.Helper()
	k := &kit{T: t, Database: &Database{Backend: b}}
	k.lastToken.Store(100) // the rows' tokens are smaller
	r := k.heartbeat(b, other, backends.HeartbeatRenew)
	if id := b.Info().Database; id != MigratedDatabase || !r.Alive || len(r.Peers) != 1 || r.Peers[0].Name != "dead" || r.Peers[0].Leases >= 0 {
		t.Errorf("the database is %q, want %q, or sidecar 7 isn't alive, or its peer isn't what the preview wrote: %+v", id, MigratedDatabase, r)
	}
	lease := func(id string, number uint64) []backends.Lease {
		return []backends.Lease{{Job: id, Token: backends.Token{Host: other, Number: number}}}
	}
	for _, w := range []backends.Write{
		backends.Ack{Leases: lease("2", 1)},
		backends.Deliver{Deliveries: []backends.Delivery{{Lease: lease("3", 2)[0], Worker: "w"}}},
		backends.Nack{Leases: lease("3", 2), Error: "again", Dead: true},
		backends.Extend{Leases: lease("9", 3)},
	} {
		k.writeLosing(w, 0)
	}
	if r := k.maintain(backends.Maintenance{Prune: true}); r.Reaped[backends.CauseSidecarLost] != 1 || r.Unusable != nil {
		t.Errorf("maintenance: %+v", r)
	}
	if v := k.view("5"); v.State != backends.StateDead || len(v.Failures) != 1 || v.Failures[0].Message != "broken" || v.Failures[0].Cause != backends.CauseNacked {
		t.Errorf("the dead job: %+v", v)
	}
	k.operate(backends.Command{Kind: backends.Retry, Queue: "q", IDs: []string{"5"}}, 1, true)
	for id, want := range migratedStates {
		k.wantState(id, want)
	}
	if prefetched, done := k.view("3"), k.view("6"); prefetched.Attempt != 1 || len(prefetched.Failures) != 1 || string(done.Result) != "result" {
		t.Errorf("the prefetched job is %+v, and the done one %+v", prefetched, done)
	}
	keyed := backends.NewJob{Queue: "q", Key: "key", KeyTTL: time.Hour}
	if s := k.write(backends.Enqueue{Jobs: []backends.NewJob{keyed}}).Stored[0]; !s.Duplicate || s.ID != "7" {
		t.Errorf("the key's job: %+v", s)
	}
	jobs := k.commit(k.claimBatch(other, 9, 0, policy("q"))).Claims[0].Jobs
	k.writeLosing(backends.Ack{Leases: append(leasesOf(jobs...), lease("9", 3)...)}, 0)
	slices.SortFunc(jobs, func(a, b backends.Job) int { return slices.Compare(a.Payload, b.Payload) })
	k.wantJobs(jobs, "dead", "keyed", "lost", "position", "ready")
	k.wantJobs(k.commit(k.claimBatch(other, 1, 0, policy("p"))).Claims[0].Jobs) // paused
	if _, _, err := k.inspector().Command(t.Context(), backends.Command{Kind: backends.Resume, Queue: "p"}); err != nil {
		t.Error(err)
	}
	if jobs := k.commit(k.claimBatch(other, 1, 0, policy("p"))).Claims[0].Jobs; len(jobs) != 1 || jobs[0].ID != "12" {
		t.Errorf("the resumed queue returns %q", payloads(jobs))
	}
}
