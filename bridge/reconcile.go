package bridge

import (
	"context"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

// heldPage is how many rows a look at the held jobs takes at a time.
const heldPage = 1000

// reconcile compares the rows claimed under id with the known leases: rows that
// nobody knows (their commit's answer got lost) go back, leases without a row are
// lost.
func (k *keeper) reconcile(ctx context.Context, id backends.Identity) error {
	missing := k.ledger.snapshot() // before the look: what is claimed later is not missed
	for after := ""; ; {
		rows, err := k.held(ctx, id, after)
		if err != nil {
			return err
		}
		if err := k.giveBackUnknown(ctx, id, after, k.ledger.unknown(rows)); err != nil {
			return err
		}
		for i := range rows {
			delete(missing, rows[i].Lease.Token)
		}
		if len(rows) < heldPage {
			break
		}
		after = rows[len(rows)-1].Lease.Job
	}
	if lost := k.ledger.dropMissing(missing); len(lost) > 0 {
		k.lost(lost)
	}
	return nil
}

func (k *keeper) held(ctx context.Context, id backends.Identity, after string) ([]backends.ClaimedJob, error) {
	ctx, cancel := answerWithin(ctx, k.times.lease().answer())
	defer cancel()
	return k.backend.ClaimedBy(ctx, id, after, heldPage)
}

// giveBackUnknown looks a second time before it gives rows back: a job that was
// settled between the look and the comparison is unknown too, but gone.
func (k *keeper) giveBackUnknown(ctx context.Context, id backends.Identity, after string, unknown []backends.Lease) error {
	if len(unknown) == 0 {
		return nil
	}
	rows, err := k.held(ctx, id, after)
	if err != nil {
		return err
	}
	still := make(map[backends.Token]struct{}, len(rows))
	for i := range rows {
		still[rows[i].Lease.Token] = struct{}{}
	}
	unknown = slices.DeleteFunc(unknown, func(l backends.Lease) bool {
		_, ok := still[l.Token]
		return !ok
	})
	if len(unknown) > 0 {
		k.log.Warn("giving back claims that nobody here knows of", "jobs", len(unknown))
		k.release(id, unknown)
	}
	return nil
}
