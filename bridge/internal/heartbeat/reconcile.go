package heartbeat

import (
	"context"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
)

// claimedPage is how many rows one query for the claimed jobs returns.
const claimedPage = 1000

// comparison is a comparison of the claimed rows with the lease table that possibly needs several heartbeats.
type comparison struct {
	id      backends.Identity
	after   string                      // the last job whose row was compared
	missing map[backends.Token]struct{} // leases without a row so far
}

// reconcile compares the rows claimed under id with the lease table. It releases rows that the table does not have:
// the reply of their commit was lost. Leases without a row are lost. If there are so many rows, or the database is so slow, that the
// next heartbeat could be late, the comparison goes on after that.
func (h *Heartbeater) reconcile(ctx context.Context, id backends.Identity) error {
	queries, cancel := backendref.WithTimeout(ctx, h.Times.sidecarTimeout().comparing())
	defer cancel()
	c := h.takeComparison(id)
	for began := c.after; ; {
		rows, err := h.Backend.ClaimedBy(queries, id, c.after, claimedPage)
		if err == nil {
			err = h.releaseUnknown(queries, id, c.after, h.Leases.Unknown(rows))
		}
		if err != nil {
			h.keepComparison(c)
			if c.after != began && queries.Err() != nil && ctx.Err() == nil {
				return nil
			}
			return err
		}
		for i := range rows {
			delete(c.missing, rows[i].Lease.Token)
		}
		if len(rows) < claimedPage {
			break
		}
		c.after = rows[len(rows)-1].Lease.Job
	}
	if h.Reconciled != nil {
		h.Reconciled()
	}
	if len(c.missing) > 0 && h.Cancelled != nil {
		h.Cancelled(queries, id) // Lost has no reason
	}
	if lost := h.Leases.DropMissing(c.missing); len(lost) > 0 {
		h.Lost(lost)
	}
	return nil
}

// takeComparison returns the comparison to go on with, or a new one. Its leases are read before the query, so that later claims do not
// count as missing. Those that were settled since then don't count either.
func (h *Heartbeater) takeComparison(id backends.Identity) *comparison {
	confirmed := h.Leases.Confirmed()
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.comparison
	if h.comparison = nil; c == nil || c.id != id {
		return &comparison{id: id, missing: confirmed}
	}
	maps.DeleteFunc(c.missing, func(t backends.Token, _ struct{}) bool { _, still := confirmed[t]; return !still })
	return c
}

func (h *Heartbeater) keepComparison(c *comparison) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.comparison = c
}

// releaseUnknown queries a second time before it releases rows. A job that was settled between the query and the
// comparison is unknown too, but gone.
func (h *Heartbeater) releaseUnknown(ctx context.Context, id backends.Identity, after string, unknown []backends.ClaimedJob) error {
	if len(unknown) == 0 {
		return nil
	}
	rows, err := h.Backend.ClaimedBy(ctx, id, after, claimedPage)
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
