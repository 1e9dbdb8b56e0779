package sqlserver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Heartbeat implements backends.Backend. It has a connection of its own, so that no commit delays it. Sending a
// heartbeat twice only increases its counter twice.
func (s *Store) Heartbeat(ctx context.Context, b backends.Heartbeat) (_ backends.HeartbeatResult, err error) {
	defer func() { err = s.HeartbeatFailed(err) }()
	var p backends.HeartbeatResult
	maybe := false // the heartbeat is possibly written
	err = s.Again(ctx, func(ctx context.Context) error {
		c, err := s.heartbeats.Conn(ctx)
		if err != nil {
			return err
		}
		p = backends.HeartbeatResult{}
		if err = s.sql.carryOut(ctx, c, []call{s.heartbeatCall(b, &p)}); err != nil && (broken(err) || lostBehind(err) || ctx.Err() != nil) {
			maybe = true
			discard(c)
		}
		if e := c.Close(); e != nil && err == nil {
			s.log.Debug("can't return a connection to the pool", "event", "connection_return_failed", "address", s.place, "error", e)
		}
		return err
	})
	switch {
	case err == nil:
		s.HeartbeatAnswered(b, p)
		return p, nil
	case maybe:
		return backends.HeartbeatResult{}, fmt.Errorf("%w: a heartbeat: %w", backends.ErrUnknownOutcome, err)
	}
	return backends.HeartbeatResult{}, err
}

// heartbeatCall returns the call that writes a heartbeat.
func (s *Store) heartbeatCall(b backends.Heartbeat, p *backends.HeartbeatResult) call {
	piece := map[backends.HeartbeatKind]*piece{backends.HeartbeatJoin: s.sql.join, backends.HeartbeatRenew: s.sql.renew, backends.HeartbeatLeave: s.sql.leave}[b.Kind]
	return call{piece, []any{int64(b.Sidecar), b.Name, ms(b.Timeout), int64(bit(b.DepthLeader)), b.Version, b.Leases}, []reader{
		func(rows *sql.Rows) error {
			var made int
			err := one(&made)(rows)
			p.Alive = made == 1
			return err
		},
		each(func(rows *sql.Rows) error {
			var host, beats, left, timeout int64
			var peer backends.Peer
			if err := rows.Scan(&host, &beats, &left, &peer.Dead, &peer.HasLeft, &timeout, &peer.DepthLeader, &peer.Name, &peer.Version, &peer.Leases); err != nil {
				return err
			}
			peer.Sidecar, peer.Heartbeats, peer.Left, peer.Timeout = backends.Identity(host), uint64(beats), core.FromMS(left), backends.PeerTimeout(timeout)
			peer.Expired = backends.HeartbeatExpired(peer.Left, peer.Timeout, peer.HasLeft)
			p.Peers = append(p.Peers, peer)
			return nil
		}),
	}}
}
