package sqlite

import (
	"context"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Heartbeat implements backends.Backend. It writes on a connection of its own, before
// any commit of this process that waits for the write lock.
func (s *Store) Heartbeat(ctx context.Context, b backends.Heartbeat) (backends.HeartbeatResult, error) {
	var p backends.HeartbeatResult
	err := s.write(ctx, &s.heartbeatConn, s.openHeartbeatConn, func(t *tx) (err error) {
		n, host, timeout := int64(0), int64(b.Sidecar), core.MS(b.Timeout)
		values := []any{b.Name, t.now + timeout, timeout, b.DepthLeader, b.Version, b.Leases, host}
		switch b.Kind {
		case backends.HeartbeatJoin:
			n, err = t.exec(t.sql.join, values...)
		case backends.HeartbeatRenew:
			n, err = t.exec(t.sql.heartbeat, values...)
		case backends.HeartbeatLeave:
			n, err = t.exec(t.sql.farewell, values...)
		}
		if err != nil {
			return err
		}
		p.Alive = n == 1
		return t.query(t.sql.peers, func(r row) error {
			peer := backends.Peer{
				Sidecar: backends.Identity(r.int(0)), Heartbeats: uint64(r.int(1)), Left: core.FromMS(r.int(2)), Dead: r.int(3) != 0, HasLeft: r.int(4) != 0,
				Timeout: backends.PeerTimeout(r.int(5)), DepthLeader: r.int(6) != 0, Name: r.text(7), Version: r.text(8), Leases: r.int(9),
			}
			peer.Expired = backends.HeartbeatExpired(peer.Left, peer.Timeout, peer.HasLeft)
			p.Peers = append(p.Peers, peer)
			return nil
		}, t.now, host)
	})
	if err != nil {
		return backends.HeartbeatResult{}, err // the abandoned write can still change p
	}
	s.HeartbeatAnswered(b, p)
	return p, nil
}
