package backendref

import (
	"context"

	"github.com/qsidecar/qsidecar/backends"
)

// ReplicaStats returns the Stats of the replica. If there is no replica, or it can't answer, it returns those of the
// primary.
func (r *Ref) ReplicaStats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	if stats, ok := r.fromReplica(ctx, queue); ok {
		return stats, nil
	}
	return r.Stats(ctx, queue)
}

func (r *Ref) fromReplica(ctx context.Context, queue string) (stats []backends.QueueStats, ok bool) {
	e, release := r.use()
	defer release()
	id := e.Info().Database
	if e.replica == nil || id == "" { // without the primary's id it can't be compared
		return nil, false
	}
	stats, err := e.replica.Stats(ctx, id, queue)
	return stats, err == nil
}

// ReplicaErr returns why the replica gave no answer last, or nil.
func (r *Ref) ReplicaErr() error {
	e, release := r.use()
	defer release()
	if e.replica == nil {
		return nil
	}
	return e.replica.Err()
}
