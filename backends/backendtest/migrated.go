package backendtest

import (
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// MigratedDatabase is the id that the last preview's tables have in testdata.
const MigratedDatabase = "preview_dbs"

// CheckMigrated checks that the rows of the last preview survived the migration. Each engine's
// testdata stores the same ones: sidecar 7 is alive and sidecar 8 is dead, queue "p" is paused,
// and the payload of each job describes the job.
func CheckMigrated(t *testing.T, b backends.Backend) {
	t.Helper()
	if id := b.Info().Database; id != MigratedDatabase {
		t.Errorf("the database is %q, want %q", id, MigratedDatabase)
	}
	k := &kit{T: t, Database: &Database{Backend: b}}
	k.lastToken.Store(100) // the rows' tokens are smaller
	if r := k.heartbeat(b, other, backends.HeartbeatRenew); !r.Alive {
		t.Error("sidecar 7 isn't alive")
	}
	lease := func(id string, number uint64) []backends.Lease {
		return []backends.Lease{{Job: id, Token: backends.Token{Host: other, Number: number}}}
	}
	k.writeLosing(backends.Ack{Leases: lease("2", 1)}, 0)
	k.writeLosing(backends.Deliver{Deliveries: []backends.Delivery{{Lease: lease("3", 2)[0], Worker: "w"}}}, 0)
	k.writeLosing(backends.Nack{Leases: lease("3", 2), Error: "again", Dead: true}, 0)
	k.writeLosing(backends.Extend{Leases: lease("9", 3)}, 0)
	if r := k.maintain(backends.Maintenance{Prune: true}); r.Reaped[backends.CauseSidecarLost] != 1 || r.Unusable != nil {
		t.Errorf("maintenance: %+v", r)
	}
	for id, want := range map[string]backends.State{
		"1": backends.StateReady, "2": backends.StateDeleted, "3": backends.StateDead, "4": backends.StateScheduled,
		"5": backends.StateDead, "6": backends.StateDone, "7": backends.StateReady, "8": backends.StateReady,
		"9": backends.StateClaimed, "10": backends.StateReady, "11": backends.StateDead, "12": backends.StateReady,
	} {
		k.wantState(id, want)
	}
	if v := k.view("3"); v.Attempt != 1 || len(v.Failures) != 1 {
		t.Errorf("the prefetched job: %+v", v)
	}
	if v := k.view("5"); len(v.Failures) != 1 || v.Failures[0].Message != "broken" || v.Failures[0].Cause != backends.CauseNacked {
		t.Errorf("the dead job: %+v", v)
	}
	if v := k.view("6"); string(v.Result) != "result" {
		t.Errorf("the done job: %+v", v)
	}
	dead, err := k.inspector().Peek(t.Context(), backends.Peek{Queue: "q", State: backends.StateDead, Max: 9})
	if err != nil || len(dead) != 3 {
		t.Errorf("%d dead jobs are listed, want 3: %v", len(dead), err)
	}
	keyed := backends.NewJob{Queue: "q", Key: "key", KeyTTL: time.Hour}
	if s := k.write(backends.Enqueue{Jobs: []backends.NewJob{keyed}}).Stored[0]; !s.Duplicate || s.ID != "7" {
		t.Errorf("the key's job: %+v", s)
	}
	if n, _, err := k.inspector().Command(t.Context(), backends.Command{Kind: backends.Retry, Queue: "q", IDs: []string{"5"}}); n != 1 || err != nil {
		t.Errorf("retry: %d, %v", n, err)
	}
	jobs := k.commit(k.claimBatch(other, 9, 0, policy("q"))).Claims[0].Jobs
	got := payloads(jobs)
	slices.Sort(got)
	if want := []string{"dead", "keyed", "lost", "position", "ready"}; !slices.Equal(got, want) {
		t.Errorf("claimed %q, want %q", got, want)
	}
	k.writeLosing(backends.Ack{Leases: leasesOf(jobs...)}, 0)
	k.writeLosing(backends.Ack{Leases: lease("9", 3)}, 0)
	if jobs := k.commit(k.claimBatch(other, 1, 0, policy("p"))).Claims[0].Jobs; len(jobs) > 0 {
		t.Errorf("the paused queue returns %q", payloads(jobs))
	}
	if _, _, err := k.inspector().Command(t.Context(), backends.Command{Kind: backends.Resume, Queue: "p"}); err != nil {
		t.Error(err)
	}
	if jobs := k.commit(k.claimBatch(other, 1, 0, policy("p"))).Claims[0].Jobs; len(jobs) != 1 || jobs[0].ID != "12" {
		t.Errorf("the resumed queue returns %q", payloads(jobs))
	}
}
