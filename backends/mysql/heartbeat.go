package mysql

import (
	"context"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// Heartbeat implements backends.Backend. It has a connection of its own, so no commit of this process can
// delay it. A heartbeat can run twice: only its counter grows twice.
func (s *Store) Heartbeat(ctx context.Context, b backends.Heartbeat) (p backends.HeartbeatResult, err error) {
	defer func() { err = s.HeartbeatFailed(err) }()
	lost := false // an answer was lost
	err = s.Again(ctx, func(ctx context.Context) (err error) {
		var sent bool
		p, sent, err = s.sendHeartbeat(ctx, b)
		lost = lost || sent && err != nil && (!session.FromServer(err) || session.EndsSession(err))
		return err
	})
	if err != nil && (!session.FromServer(err) || session.EndsSession(err)) { // the connections of the pool can lead to the same dead host
		s.pool.Retire()
	}
	switch {
	case err == nil:
		s.HeartbeatAnswered(b, p)
		s.cluster.Refresh(s.Life(), s.describe)
		return p, nil
	case lost:
		return backends.HeartbeatResult{}, fmt.Errorf("%w: a heartbeat: %w", backends.ErrUnknownOutcome, err)
	}
	return backends.HeartbeatResult{}, err
}

// sendHeartbeat makes one attempt. sent is false if the server certainly did not get it.
func (s *Store) sendHeartbeat(ctx context.Context, b backends.Heartbeat) (p backends.HeartbeatResult, sent bool, err error) {
	c, err := s.heartbeats.Take(ctx, &s.Meter)
	if err != nil {
		return p, false, err
	}
	defer s.heartbeats.Put(c)
	if ctx.Err() != nil {
		return p, false, context.Cause(ctx)
	}
	// A session from before stays usable if its server becomes read-only, and an account that is exempt
	// from read_only still writes through it.
	if err := s.dialer.CheckWritable(ctx, c); err != nil {
		if core.Known(err) {
			c.Bad = true
			s.pool.Retire()
		}
		return p, false, err
	}
	if c.Old {
		defer func() { c.Bad = true }() // the next session has the server's present max_allowed_packet
	}
	var t session.Script
	timeout, host := core.MS(b.Timeout), int64(b.Sidecar)
	values := []any{b.Name, timeout * 1000, timeout, session.Flag(b.DepthLeader), b.Version, b.Leases}
	switch b.Kind {
	case backends.HeartbeatJoin:
		t.Add(s.sql.join, append([]any{host}, values...)...)
	case backends.HeartbeatRenew:
		t.Add(s.sql.renew, append(values, host)...)
	case backends.HeartbeatLeave:
		t.Add(s.sql.leave, append(values, host)...)
	}
	t.Add(s.sql.lastWatcher, host)
	t.Each(func(r *session.Result) {
		p.Watched = r.Int(5) != 0
		peer := backends.Peer{
			Sidecar: backends.Identity(r.Int(0)), Heartbeats: uint64(r.Int(1)), Left: time.Duration(r.Int(2)) * time.Microsecond, Dead: r.Int(3) != 0, HasLeft: r.Int(4) != 0,
			Timeout: backends.PeerTimeout(r.Int(6)), DepthLeader: r.Int(7) != 0, Name: r.Text(8), Version: r.Text(9), Leases: r.Int(10),
		}
		peer.Expired = backends.HeartbeatExpired(peer.Left, peer.Timeout, peer.HasLeft)
		if peer.Sidecar == b.Sidecar {
			p.Alive = !peer.Dead && (!peer.HasLeft || b.Kind == backends.HeartbeatLeave)
		} else {
			p.Peers = append(p.Peers, peer)
		}
	}, s.sql.peers, session.Flag(b.AllPeers), host)
	return p, true, c.Run(ctx, &t)
}
