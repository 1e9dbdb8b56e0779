package maintenance

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
)

// resolveBatches ends batches whose jobs have ended, and deletes those that expired. It reports whether there are possibly more.
func (m *Maintainer) resolveBatches(ctx context.Context, most time.Duration) (more bool, _ error) {
	ctx, cancel := backendref.WithTimeout(ctx, most)
	defer cancel()
	r, err := m.Backend.ResolveBatches(ctx, nil)
	m.Batches(r.Ended)
	m.LogBatches(&r)
	return r.More, err
}

// LogBatches passes on that callbacks are ready, and logs what became of batches.
func (m *Maintainer) LogBatches(r *backends.ResolvedBatches) {
	m.Claims.NotifyReady(r.Ready)
	for i := range r.Ended {
		b := &r.Ended[i]
		m.Log.Debug("batch ended", "event", "batch_ended", "batch", b.ID, "queue", b.Queue, "done", b.Done, "failed", b.Failed, "callback", b.Callback)
	}
	for i := range r.Expired {
		b := &r.Expired[i]
		m.Log.Warn("batch expired", "event", "batch_expired", "batch", b.ID, "queue", b.Queue, "state", b.State)
	}
}
