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
func (k *Heartbeater) reconcile(ctx context.Context, id backends.Identity) error {
	missing := k.Leases.Confirmed() // read before the query, so that later claims do not count as missing
	for after := ""; ; {
		rows, err := k.claimedBy(ctx, id, after)
		if err != nil {
			return err
		}
		if err := k.releaseUnknown(ctx, id, after, k.Leases.Unknown(rows)); err != nil {
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
	if k.Reconciled != nil {
		k.Reconciled()
	}
	if lost := k.Leases.DropMissing(missing); len(lost) > 0 {
		k.Lost(lost)
	}
	return nil
}

func (k *Heartbeater) claimedBy(ctx context.Context, id backends.Identity, after string) ([]backends.ClaimedJob, error) {
	ctx, cancel := backendref.WithTimeout(ctx, k.Times.sidecarTimeout().answer())
	defer cancel()
	return k.Backend.ClaimedBy(ctx, id, after, claimedPage)
}

// releaseUnknown queries a second time before it releases rows. A job that was settled between the query and the
// comparison is unknown too, but gone.
func (k *Heartbeater) releaseUnknown(ctx context.Context, id backends.Identity, after string, unknown []backends.ClaimedJob) error {
	if len(unknown) == 0 {
		return nil
	}
	rows, err := k.claimedBy(ctx, id, after)
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
	if n := k.Release(id, unknown); n > 0 {
		k.Log.Warn("releasing claims without a session", "event", "unknown_claims_released", "jobs", n)
	}
	return nil
}
