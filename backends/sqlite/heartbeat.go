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
		n, end := int64(0), t.now+core.MS(b.Timeout)
		switch b.Kind {
		case backends.HeartbeatJoin:
			n, err = t.exec(t.sql.join, int64(b.Host), b.RowName(), end)
		case backends.HeartbeatRenew:
			n, err = t.exec(t.sql.heartbeat, b.RowName(), end, int64(b.Host))
		case backends.HeartbeatLeave:
			n, err = t.exec(t.sql.farewell, b.RowName(), end, int64(b.Host))
		}
		if err != nil {
			return err
		}
		p.Alive = n == 1
		return t.query(t.sql.peers, func(r row) error {
			name := r.text(4)
			lease := backends.TimeoutOf(name)
			p.Peers = append(p.Peers, backends.Peer{
				Host: backends.Identity(r.int(0)), Heartbeats: uint64(r.int(1)), Dead: r.int(3) != 0, DepthLeader: backends.IsDepthLeader(name), Timeout: lease,
				Expired: backends.HeartbeatExpired(core.FromMS(r.int(2)), lease, r.int(5) != 0),
				Row:     name, Left: core.FromMS(r.int(2)), HasLeft: r.int(5) != 0,
			})
			return nil
		}, t.now, int64(b.Host))
	})
	if err != nil {
		return backends.HeartbeatResult{}, err // the abandoned write can still change p
	}
	return p, nil
}
