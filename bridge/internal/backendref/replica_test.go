package backendref

import (
	"context"
	"errors"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// fakeReplica answers with one queue, or with err.
type fakeReplica struct{ err error }

func (f *fakeReplica) Stats(_ context.Context, database, _ string) ([]backends.QueueStats, error) {
	return []backends.QueueStats{{Queue: "of " + database}}, f.err
}
func (f *fakeReplica) Err() error { return f.err }
func (*fakeReplica) Close() error { return nil }

// TestReplicaStats checks when statistics come from the replica. Stats, which limits depend on, never do.
func TestReplicaStats(t *testing.T) {
	primary := memory.New()
	f := &fakeReplica{}
	r := New(primary, f, nil)
	all, err := r.ReplicaStats(t.Context(), "")
	if err != nil || len(all) != 1 || all[0].Queue != "of "+primary.Info().Database || r.ReplicaErr() != nil {
		t.Errorf("with a replica: %v, %v, %v", all, err, r.ReplicaErr())
	}
	if all, err := r.Stats(t.Context(), ""); err != nil || len(all) != 0 {
		t.Errorf("Stats returns %v, %v", all, err)
	}
	f.err = errors.New("down")
	if all, err := r.ReplicaStats(t.Context(), ""); err != nil || len(all) != 0 || !errors.Is(r.ReplicaErr(), f.err) {
		t.Errorf("with a replica that is down: %v, %v, %v", all, err, r.ReplicaErr())
	}
	r.Replace(primary, nil, nil)
	if all, err := r.ReplicaStats(t.Context(), ""); err != nil || len(all) != 0 || r.ReplicaErr() != nil {
		t.Errorf("without a replica: %v, %v, %v", all, err, r.ReplicaErr())
	}
}
