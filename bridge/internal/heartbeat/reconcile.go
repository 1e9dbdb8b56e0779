package heartbeat

import (
	"context"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
)

// claimedPage is how many rows one query for the claimed jobs returns.
const claimedPage = 1000

// reconcile compares the rows claimed under id with the lease table. It releases rows that the table does not have:
// the reply of their commit was lost. Leases without a row are lost.
func (h *Heartbeater) reconcile(ctx context.Context, id backends.Identity) error {
	missing := h.Leases.Confirmed() // read before the query, so that later claims do not count as missing
	for after := ""; ; {
		rows, err := h.claimedBy(ctx, id, after)
		if err != nil {
			return err
		}
		if err := h.releaseUnknown(ctx, id, after, h.Leases.Unknown(rows)); err != nil {
			return err
		}
		for i := range rows {
			delete(missing, rows[i].Lease.Token)
		}
		if len(rows) < claimedPage {
			break
		}
		after = rows[len(rows)-1].Lease.Job
	}
	if h.Reconciled != nil {
		h.Reconciled()
	}
	if len(missing) > 0 && h.Cancelled != nil {
		h.askCancelled(ctx, id) // Lost has no reason
	}
	if lost := h.Leases.DropMissing(missing); len(lost) > 0 {
		h.Lost(lost)
	}
	return nil
}

func (h *Heartbeater) claimedBy(ctx context.Context, id backends.Identity, after string) ([]backends.ClaimedJob, error) {
	ctx, cancel := backendref.WithTimeout(ctx, h.Times.sidecarTimeout().answer())
	defer cancel()
	return h.Backend.ClaimedBy(ctx, id, after, claimedPage)
}

// askCancelled waits for the answer as long as for that of another query of a heartbeat.
func (h *Heartbeater) askCancelled(ctx context.Context, id backends.Identity) {
	ctx, cancel := backendref.WithTimeout(ctx, h.Times.sidecarTimeout().answer())
	defer cancel()
	h.Cancelled(ctx, id)
}

// releaseUnknown queries a second time before it releases rows. A job that was settled between the query and the
// comparison is unknown too, but gone.
func (h *Heartbeater) releaseUnknown(ctx context.Context, id backends.Identity, after string, unknown []backends.ClaimedJob) error {
	if len(unknown) == 0 {
		return nil
	}
	rows, err := h.claimedBy(ctx, id, after)
	if err != nil {
		return err
	}
	still := make(map[backends.Token]struct{}, len(rows))
	for i := range rows {
		still[rows[i].Lease.Token] = struct{}{}
	}
	unknown = slices.DeleteFunc(unknown, func(j backends.ClaimedJob) bool {
		_, ok := still[j.Lease.Token]
		return !ok
	})
	if len(unknown) == 0 {
		return nil
	}
	if n := h.Release(id, unknown); n > 0 {
		h.Log.Warn("releasing claims without a session", "event", "unknown_claims_released", "jobs", n)
	}
	return nil
}
