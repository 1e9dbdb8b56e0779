package sqlserver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// Beat implements backends.Backend. No commit of this process can hold it up: it has
// a connection of its own. A beat made twice is a beat: only its counter moves twice.
func (s *Store) Heartbeat(ctx context.Context, b backends.Heartbeat) (backends.HeartbeatResult, error) {
	ctx, done := s.bound(ctx)
	defer done()
	if ctx.Err() != nil {
		return backends.HeartbeatResult{}, batch.Ended(ctx, "before the beat")
	}
	var p backends.HeartbeatResult
	maybe := false // it may have been made
	err := s.again(ctx, func() error {
		c, err := s.beats.Conn(ctx)
		if err != nil {
			return err
		}
		p = backends.HeartbeatResult{}
		if err = s.sql.carryOut(ctx, c, []call{s.beat(b, &p)}); err != nil && (broken(err) || ctx.Err() != nil) {
			maybe = true
			discard(c)
		}
		if e := c.Close(); e != nil && err == nil {
			s.log.Debug("giving the beats' connection back", "place", s.place, "error", e)
		}
		return err
	})
	switch {
	case err == nil:
		return p, nil
	case maybe:
		return backends.HeartbeatResult{}, fmt.Errorf("%w: a beat: %w", backends.ErrUnknownOutcome, err)
	}
	return backends.HeartbeatResult{}, err
}

// beat is the call for a beat.
func (s *Store) beat(b backends.Heartbeat, p *backends.HeartbeatResult) call {
	piece := map[backends.HeartbeatKind]*piece{backends.HeartbeatJoin: s.sql.join, backends.HeartbeatRenew: s.sql.renew, backends.HeartbeatLeave: s.sql.leave}[b.Kind]
	return call{piece, []any{int64(b.Host), b.RowName(), ms(b.Timeout)}, []reader{
		func(rows *sql.Rows) error {
			var made int
			err := one(&made)(rows)
			p.Alive = made == 1
			return err
		},
		each(func(rows *sql.Rows) error {
			var host, beats, left int64
			var peer backends.Peer
			var name string
			var hasLeft bool
			if err := rows.Scan(&host, &beats, &left, &peer.Dead, &name, &hasLeft); err != nil {
				return err
			}
			peer.Host, peer.Heartbeats, peer.DepthLeader, peer.Timeout = backends.Identity(host), uint64(beats), backends.IsDepthLeader(name), backends.TimeoutOf(name)
			peer.Expired = backends.HeartbeatExpired(batch.FromMS(left), peer.Timeout, hasLeft)
			p.Peers = append(p.Peers, peer)
			return nil
		}),
	}}
}
