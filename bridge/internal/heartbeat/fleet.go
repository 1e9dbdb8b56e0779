package heartbeat

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// fleetAge is how old the list that Fleet returns can be. So the database reads it at most once in that time, however
// many clients request it.
const fleetAge = 5 * time.Second

// Fleet returns the rows of all sidecars of the database, also of this one, and the time since they were read. If the
// last list is too old, it sends a heartbeat that returns all, and waits for it as long as ctx allows. Then it returns
// the older list, if there is one.
func (h *Heartbeater) Fleet(ctx context.Context) (fleet []backends.Peer, age time.Duration, err error) {
	for {
		h.mu.Lock()
		fleet, age = h.fleet, h.Clock()-h.fleetAt
		if fleet != nil && age < fleetAge {
			h.mu.Unlock()
			return fleet, age, nil
		}
		answered := make(chan struct{})
		h.confirmations = append(h.confirmations, answered)
		lastErr := h.lastErr
		h.mu.Unlock()
		h.fleetWanted.Store(true)
		h.SendNow()
		select {
		case <-answered:
		case <-ctx.Done():
			if fleet != nil {
				return fleet, age, nil
			}
			return nil, 0, cmp.Or(lastErr, context.Cause(ctx))
		}
	}
}

// heartbeat returns a heartbeat of this process.
func (h *Heartbeater) heartbeat(id backends.Identity, kind backends.HeartbeatKind, timeout time.Duration) backends.Heartbeat {
	b := backends.Heartbeat{Sidecar: id, Kind: kind, Name: hostName(), Timeout: timeout}
	if h.Version != nil {
		v := h.Version()
		b.Version = strings.ToValidUTF8(v[:min(len(v), backends.MaxVersion)], "")
	}
	if h.Leases != nil {
		b.Leases = int64(h.Leases.HeldBySessions())
	}
	return b
}

// ownRow returns the row of this sidecar after a heartbeat.
func ownRow(b backends.Heartbeat) backends.Peer {
	return backends.Peer{Sidecar: b.Sidecar, DepthLeader: b.DepthLeader, Timeout: b.Timeout, Name: b.Name, Version: b.Version, Leases: b.Leases, Left: b.Timeout}
}
